"""What runs inside a rank: groups, model chunk, the iteration, state and its movement."""
