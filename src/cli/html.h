/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the pages of HTML share: each is one file that loads nothing and runs no script, for narrow
 * and wide screens, light and dark.
 */
#ifndef CLI_HTML_H
#define CLI_HTML_H

#include <stdio.h>

/* Text from outside: escaped, and without control characters other than line ends. */
void html_text(FILE *file, const char *text);
/* From the doctype to where the text of the title goes. */
void html_begin(FILE *file);
/* From the end of the title to the begin of the body; `style` follows the shared style. */
void html_body(FILE *file, const char *style);

#endif
