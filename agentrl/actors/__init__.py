"""Agent workers: episodes, judging, and the loop that holds many of them."""
