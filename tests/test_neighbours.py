"""What other tolerances would earn, by the candidates of a campaign."""

from sidestep.campaign.config import CampaignConfig
from sidestep.campaign.neighbours import neighbours
from sidestep.campaign.records import Candidate
from sidestep.certification.records import Neighbour, Result
from sidestep.certification.words import neighbours_in_words
from sidestep.core.constraints import Scale, parse_constraints

# Return and predicted cost; labels of their own agree with the predictions.
CANDIDATES = [
    Candidate(f"{n}.safetensors", earned, (cost,), labels=1000, costly=(1000 * cost,), expected=(1000 * cost,))
    for n, (earned, cost) in enumerate([(-30.0, 0.001), (-27.0, 0.012), (-25.0, 0.035), (-22.0, 0.07), (-10.0, 0.9)])
]


def test_neighbours_are_the_best_candidates_within_half_and_twice_the_tolerance():
    constraints = parse_constraints(["none>=0.95"], Scale())
    found = neighbours(constraints, CampaignConfig(), CANDIDATES, 1.0, chosen=2)
    assert found == (Neighbour("none>=0.975", -2.0), Neighbour("none>=0.9", 3.0))
    words = neighbours_in_words(Result("x", neighbours=found))
    assert "none>=0.975 would earn about 2 less, none>=0.9 would earn about 3 more" in words


def test_a_tolerance_that_no_candidate_keeps_is_left_out():
    constraints = parse_constraints(["severe<=0.001"], Scale())
    stricter, looser = neighbours(constraints, CampaignConfig(rollouts=10**5), CANDIDATES[1:], 1.0, chosen=0)
    assert (stricter, looser) == (Neighbour("severe<=0.0005", None), Neighbour("severe<=0.002", None))
    assert neighbours_in_words(Result("x", neighbours=(stricter, looser))) == ""


def test_a_tolerance_of_zero_has_no_neighbours():
    constraints = parse_constraints(["severe<=0"], Scale())
    assert neighbours(constraints, CampaignConfig(), CANDIDATES, 1.0, chosen=0) == ()
