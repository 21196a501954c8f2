"""Plots and the HTML report."""
