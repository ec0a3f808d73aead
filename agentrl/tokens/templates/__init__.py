"""A model's own chat template as a chat format: `--chat-template`."""
