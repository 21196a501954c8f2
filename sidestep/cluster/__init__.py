"""The same work on one process, on all cores, or on many machines: jobs as data, and Dask to carry them out."""
