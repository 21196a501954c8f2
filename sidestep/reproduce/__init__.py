"""The paper's experiments: baselines, jobs that can be resumed, tables and figures made from the jobs' files."""
