"""Compiling, parallel maps, atomic files, serialisation: nothing about planning."""
