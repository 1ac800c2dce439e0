"""The exact search: tables of costs, bounds, and depth-first branch and bound."""
