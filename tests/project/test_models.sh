#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The shapes in bench/models are those that the script generates, and have the known totals.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit
# shellcheck source=tests/support/check.sh
. tests/support/check.sh

check model_shapes_are_what_the_script_makes python3 bench/models/make_models.py --check
exit $status
