import subprocess
import sys

from tests.support.paths import ROOT

SCRIPT = """
from solver import Device, Operator, PartitionError, PartitionProblem, solve

found = solve(PartitionProblem((Operator("a", 3),), (Device("d"),)), solver="greedy")
print(found)
try:
    found.save("plan.html")
except PartitionError as error:
    print(error)
import fx_bridge
print(str(found).splitlines()[-1].strip(), found._repr_html_()[:5])
"""


def test_results_are_presented_once_a_package_that_does_is_imported():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    plain, refused, presented = ran.stdout.splitlines()
    assert plain == "feasible: bottleneck 3, bound None"
    assert "import fxpartition" in refused
    assert presented.startswith("greedy") and presented.endswith("<pre>")
