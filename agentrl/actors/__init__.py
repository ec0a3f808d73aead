"""Agent workers: episodes, group scoring, and the loop that holds many of them."""
