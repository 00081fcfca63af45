# SPDX-License-Identifier: Apache-2.0
"""
`python -m nvswap.report RESULT.json... -o page.html` draws the JSON results of `nvswap bench`,
`tune` and `compare`, and of fio, as one page of HTML: its drawings are SVG, it runs no script and
loads nothing. It needs matplotlib, and neither torch nor the native library.
"""
