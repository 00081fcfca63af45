/* SPDX-License-Identifier: Apache-2.0 */
/* Writes text and the frame of a page; the caller checks the stream for errors when closing it. */
#include "cli/html.h"

#include <string.h>

#include "base/text.h"

static const char shared_style[] =
	":root { color-scheme: light dark; --paper: #fff; --card: #f5f7fa; --rule: #d3dae3;\n"
	" --ink: #0b1220; --soft: #56606e; }\n"
	"@media screen and (prefers-color-scheme: dark) { :root { --paper: #10151d;\n"
	" --card: #18202b; --rule: #364252; --ink: #e8edf4; --soft: #a3afbf; } }\n"
	"* { box-sizing: border-box; }\n"
	"html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }\n"
	"body { margin: 0 auto; padding: 16px; max-width: 1240px; background: var(--paper);\n"
	" color: var(--ink); font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }\n"
	"h1, h2, h3 { line-height: 1.25; margin: 0; }\n"
	"h1 { font-size: 1.75rem; } h2 { font-size: 1.25rem; } h3 { font-size: 1rem; }\n"
	"table { border-collapse: collapse; font-variant-numeric: tabular-nums; }\n"
	"figure { margin: 0; min-width: 0; }\n"
	"svg { display: block; width: 100%; height: auto; }\n"
	".line { fill: none; stroke-width: 2; }\n"
	".grid { stroke: var(--rule); fill: none; }\n";

void html_text(FILE *file, const char *text)
{
	size_t left = strlen(text), length;

	for (; left; text += length, left -= length) {
		size_t valid = utf8_length(text, left);

		length = valid ? valid : 1;
		if (strchr("&<>\"'", *text))
			fprintf(file, "&#%d;", *text);
		else if (!valid || (*text != '\n' && utf8_is_control(text, valid)))
			fputs("&#xfffd;", file);
		else
			fwrite(text, 1, length, file);
	}
}

void html_begin(FILE *file)
{
	fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
	      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
	      file);
}

void html_body(FILE *file, const char *style)
{
	fprintf(file, "</title>\n<style>\n%s%s</style>\n</head>\n<body>\n", shared_style, style);
}
