"""The page on which people label, and the live view of a run: one small web server beside the label store.

scenes      what is drawn of a trajectory, as JSON
book        the page's own notes: who may come in, which questions are handed out, pinned examples
desk        who is asked what, and what is done with an answer
insight     how far the work is and how well people agree
worker      the campaign, in a process of its own
runview     what a run's folder tells while it runs
guard       who is let in, from where, how often and with how much
app         the addresses of the page; server starts it
"""
