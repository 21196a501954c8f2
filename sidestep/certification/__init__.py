"""Audits of a policy on fresh rollouts, the bounds that they prove, and the ledger that keeps every one of them."""
