#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# The shapes in bench/models are those that the script generates, and have the known totals.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit

if python3 bench/models/make_models.py --check; then
	echo "ok model_shapes_are_what_the_script_makes"
else
	echo "not ok model_shapes_are_what_the_script_makes"
	exit 1
fi
