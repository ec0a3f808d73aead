"""The recording endpoint: an agent's calls to its model, recorded token by token."""
