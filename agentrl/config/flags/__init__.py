"""The flags of agentrl's own family, a file for each subject. `RunConfig` is all of them, flat."""
