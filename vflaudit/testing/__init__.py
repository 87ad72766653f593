"""Privacy invariants and Hypothesis strategies, to run on a protocol of your own.

    from vflaudit.testing import assert_isolated
    run = MyProtocol().run(data, seed=0)
    assert_isolated(run, va.Adversary({"server"}))

`vflaudit.testing.strategies` needs Hypothesis and is imported by itself.
"""

from vflaudit.testing.invariants import assert_deterministic, assert_isolated, assert_secrets_do_not_matter

__all__ = ["assert_deterministic", "assert_isolated", "assert_secrets_do_not_matter"]
