"""The price of safety: campaigns at several tolerances that share their labels, and the frontier that they trace."""
