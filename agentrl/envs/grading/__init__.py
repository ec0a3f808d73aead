"""What the rewards for text that a model wrote are made of; each rule runs in a killable process."""
