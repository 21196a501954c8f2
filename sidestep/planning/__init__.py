"""The Lagrangian: reward gradients, constraint gradients, multipliers, and the loop that trains a policy with them."""
