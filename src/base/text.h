/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Characters of UTF-8, text from outside in a form that a terminal only shows, and, by nearest.c,
 * the name that a mistyped one means.
 */
#ifndef BASE_TEXT_H
#define BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Bytes of the first character of `left` > 0 bytes of text; 0 if they are not UTF-8. */
size_t utf8_length(const char *text, size_t left);
bool text_is_utf8(const char *text);
/* The code point of a character of `length` bytes. */
uint32_t utf8_point(const char *text, size_t length);
/*
 * Whether a character of `length` bytes is obeyed rather than shown: the control characters C0 and
 * C1, line separators, and those that change the direction of writing.
 */
bool utf8_is_control(const char *text, size_t length);

/*
 * Copies `length` bytes of text into nbytes > 0 at `buffer`, with each byte of a control character,
 * and each that is not UTF-8, as \xHH. What does not fit is left out; 4 * length + 1 bytes always
 * do. Returns `buffer`.
 */
const char *visible_text(const char *text, size_t length, char *buffer, size_t nbytes);
/* Prints text from outside, such as a name or path, in that form. */
void print_visible(FILE *file, const char *text);

/* Why the path stands for another, as a predicate: it begins as only a shell reads it ("~/x",
 * "$HOME/x"), or is the word of a launcher ("none", "auto"). NULL: it does not. A directory of that
 * name has ./ before it. */
const char *path_stands_for(const char *path);
/* Whether a variable of a shell is in it: "/mnt/$USER". */
bool path_has_variable(const char *path);

/* Whether NFS or FUSE names a file so that was removed while it was open: until it is closed, or
 * for ever after a crash. */
bool is_name_of_removed(const char *name);

bool text_ends_with(const char *text, const char *suffix);
/* Whether the word is one of a list with commas. */
bool text_lists(const char *list, const char *word);
/* The name that a mistyped `text` most likely means; NULL: none is near. */
const char *nearest_name(const char *text, const char *const *names, unsigned n);

#endif
