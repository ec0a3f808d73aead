"""What the rewards for text that a model wrote are made of; each runs in a killable process."""
