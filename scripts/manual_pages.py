#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
Writes a manual page for each public function from the comments of the headers, and libnvswap.3 from
its template.

    scripts/manual_pages.py man/libnvswap.3.in build/man include/nvswap.h include/nvswap/*.h examples/*.c

A comment directly above functions documents them on one page. It has paragraphs, lists ("- "), code
(indented by a tab), and at its end "Errors:" with one error a line. The page shows the types of the
prototypes as the header defines them. A comment that stands alone is a part of libnvswap.3, but for its
code: that is an example on the pages of all functions that it calls. Other functions have one from the
programs in examples/.
"""
import errno
import os
import pathlib
import re
import shutil
import sys

SIGNATURE = re.compile(r"NVS_API\s+(.*?[\s*])(nvs_\w+)\((.*)\);", re.S)
# Code, and the paragraph above it if that ends with a colon.
EXAMPLE = re.compile(r"(?:^\n(.+(?:\n.+)*:)\n)?^\n((?:\t.*\n|\n(?=\t))+)", re.M)
ERROR = re.compile(r"(-E[A-Z0-9]+(?: and other errors[^:]*)?|Others)\b:?\s*(.*)")


class Page:
    """The functions that share a comment."""

    def __init__(self, header, comment):
        self.header, self.comment, self.functions = header, comment, []


def blocks_of(source):
    """The comments and declarations that begin a line, with "" for each blank line."""
    block = ""
    for line in source.splitlines():
        block += line + "\n"
        code = re.sub(r"/\*.*?\*/", "", block, flags=re.S)
        if "/*" in code or code.rstrip().endswith("\\"):
            continue
        if code.strip() and not code.startswith("#") and (
                code.count("{") != code.count("}") or not code.rstrip().endswith(";")):
            if not re.match(r'extern "C"|}', code):
                continue
        yield block.strip()
        block = ""


def text_of(comment):
    return re.sub(r"^ ?\* ?", "", comment.removeprefix("/*").removesuffix("*/"), flags=re.M).strip("\n ")


class Headers:
    def __init__(self):
        self.pages, self.types, self.sections, self.examples = [], {}, {}, []

    def read(self, path):
        comment, page, heads = "", None, []
        for block in blocks_of(path.read_text()):
            if block.startswith("/*"):
                comment, page = block, None
                continue
            signature = SIGNATURE.match(block)
            if signature:
                if not page or comment:
                    page = Page(path.name, text_of(comment))
                    self.pages.append(page)
                page.functions.append([" ".join(part.split()) for part in signature.groups()])
            else:
                page = None
                kind = re.match(r"(?:(?:struct|enum) |typedef [^(]*[ *])(\w+)", block)
                if kind and (comment or "{" in block):
                    self.types[kind[1]] = f"{comment}\n{block}".strip()
                elif comment and "SPDX" not in comment:
                    told = EXAMPLE.sub("", text_of(comment) + "\n").strip()
                    self.examples += EXAMPLE.findall(text_of(comment) + "\n")
                    heads.append(told)
            comment = ""
        self.sections[path.name] = heads

    def page_of(self, name):
        return next((page for page in self.pages if name in [f[1] for f in page.functions]), None)

    def types_of(self, text):
        """The definitions of the types that a text names, and of those that they name."""
        found, left = {}, [text]
        while left:
            for name in re.findall(r"\bnvs_\w+", left.pop(0)):
                if name in self.types and name not in found and name != "nvs_error":
                    found[name] = self.types[name]
                    left.append(self.types[name])
        return list(found.values())


def escaped(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.M)


def code(text):
    return f".RS 4\n.EX\n{escaped(text.expandtabs(8).rstrip())}\n.EE\n.RE\n"


class Writer:
    def __init__(self, headers):
        self.headers, self.names = headers, []

    def prose(self, text):
        """Plain text as roff, a sentence a line, with references to pages and names of arguments."""
        text = re.sub(r"(?<=[\w)\"`}][.:]) (?=[A-Z`*\"])", "\n", " ".join(text.split()))
        text = escaped(text)
        text = re.sub(r"`([^`]+)`", r"\\fI\1\\fP", text)
        return re.sub(r"(?<![\w/])nvs_\w+\b(?!\.h)(?:\(\))?", self.reference, text)

    def reference(self, match):
        name = match[0].removesuffix("()")
        other = self.headers.page_of(name) and name not in self.names
        return f"\\fB{name}\\fP(3)" if other else f"\\fB{name}\\fP"

    def paragraphs(self, text):
        written = ""
        text = re.sub(r"(?<=\n)(\t.*\n)(?:[ ]*\n)(?=\t)", r"\1\t\n", text)
        for paragraph in re.split(r"\n *\n", text):
            if paragraph.startswith("\t"):
                written += ".PP\n" + code(re.sub(r"^\t", "", paragraph, flags=re.M))
                continue
            first, *items = re.split(r"^- ", paragraph, flags=re.M)
            if first.strip():
                written += f".PP\n{self.prose(first)}\n"
            for i, item in enumerate(items):
                # What follows the last item without a blank line is text again.
                item, end, rest = item.partition("\n") if i + 1 == len(items) else (item, "", "")
                while rest.startswith(" "):
                    line, end, rest = rest.partition("\n")
                    item += line
                written += f".IP \\(bu 2\n{self.prose(item)}\n"
                if rest:
                    written += f".PP\n{self.prose(rest)}\n"
        return written.replace(".PP\n", "", 1) if written.startswith(".PP") else written

    def errors(self, text):
        """The lines from "Errors" on: what they say of all, and a list."""
        first, *lines = text.splitlines()
        while lines and not ERROR.match(lines[0]):
            first += " " + lines.pop(0)
        first = re.sub(r"^Errors: (.)", lambda match: match[1].upper(), first)
        written = "" if first == "Errors:" else self.prose(first) + "\n"
        entries, last = [], []
        for line in lines:
            match = ERROR.match(line)
            if match:
                entries.append(list(match.groups()))
            elif line.startswith(" "):
                entries[-1][1] += " " + line.strip()
            else:
                last.append(line)
        for name, what in entries:
            if not what and name.startswith("-E") and " " not in name:
                what = os.strerror(getattr(errno, name[1:])).lower()
            written += f".TP\n.B {escaped(name)}\n{self.prose(what)}\n"
        return written + (f".PP\n{self.prose(' '.join(last))}\n" if last else "")

    def prototype(self, kind, name, arguments):
        lines = [f"{kind}{'' if kind.endswith('*') else ' '}{name}("]
        for i, argument in enumerate(arguments.split(", ")):
            argument += ");" if i + 1 == len(arguments.split(", ")) else ","
            if i and len(lines[-1]) + len(argument) > 76:
                lines.append("    ")
            lines[-1] += (" " if lines[-1][-1] not in "( " else "") + argument
        lines = escaped("\n".join(lines))
        lines = re.sub(r"([ *])(\w+)(?=[,)])", r"\1\\fI\2\\fB", lines)
        return "\n".join(f"\\fB{line}\\fP" for line in lines.splitlines())

    def summary(self, page):
        """The first sentence up to a colon or a semicolon, for the line of names."""
        text = " ".join(re.split(r"^Errors", page.comment, flags=re.M)[0].split())
        text = re.match(r".*?(?=[:;] | \(|\.(?: |$)|$)", text)[0].replace("`", "")
        if len(text) > 80:
            text = text.partition(", ")[0]
        return escaped(text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text)

    def example(self, names, examples):
        for lead, block in self.headers.examples:
            if any(re.search(rf"\b{name}\(", block) for name in names):
                return (f"{self.prose(lead)}\n.PP\n" if lead else "") + code(
                    re.sub(r"^\t", "", block, flags=re.M).strip("\n"))
        found = [(len(body), path, body) for path, body in examples
                 if any(re.search(rf"\b{name}\(", body) for name in names)]
        if not found:
            return ""
        _, path, body = min(found)
        return f"From\n.I examples/{path}\nof the source:\n.PP\n{code(body)}"

    def page(self, page, examples):
        names = self.names = [name for _, name, _ in page.functions]
        told, errors, listed = page.comment.partition("\nErrors")
        if page.comment.startswith("Errors"):
            told, errors, listed = "", "\nErrors", page.comment.removeprefix("Errors")
        written = f".SH NAME\n{', '.join(names)} \\- {self.summary(page)}\n"
        written += ".SH LIBRARY\nnvswap (libnvswap, \\-lnvswap)\n.SH SYNOPSIS\n.nf\n.B #include <nvswap.h>\n"
        for function in page.functions:
            written += f".PP\n{self.prototype(*function)}\n"
        written += f".fi\n.SH DESCRIPTION\n{self.paragraphs(told)}"
        types = self.headers.types_of(" ".join(f"{kind} {arguments}" for kind, _, arguments in page.functions))
        if types:
            written += ".SS Types\n" + ".PP\n".join(code(each) for each in types)
        if page.functions[0][0] == "int" and not re.search(r"\b[Rr]eturns (0|a descriptor|the status)", told):
            message = ", with the message in\n.I error" if "nvs_error" in page.functions[0][2] else ""
            written += f".SH RETURN VALUE\n0, or a negative errno{message}.\n"
        if errors:
            written += f".SH ERRORS\n{self.errors('Errors' + listed)}"
        example = self.example(names, examples)
        if example:
            written += f".SH EXAMPLES\n{example}"
        others = [name for name in dict.fromkeys(re.findall(r"\bnvs_\w+", page.comment))
                  if name not in names and self.headers.page_of(name)]
        return written + ".SH SEE ALSO\n" + ",\n".join(
            f".BR {name} (3)" for name in ["libnvswap", *sorted(others)]).replace(",\n.BR", " ,\n.BR") + "\n"

    def sections(self):
        """A section for each header: what it says of all its functions, and their list."""
        written, self.names = "", []
        for header, texts in self.headers.sections.items():
            pages = [page for page in self.headers.pages if page.header == header]
            if not pages:
                continue
            title, _, told = " ".join(texts[0].split()).partition(":")
            title, dot, rest = title.partition(". ")
            told = (rest + (":" + told if told else "")) if dot else told
            written += f".SS {escaped(title.rstrip('.'))}\n"
            told = told.strip()
            told = [told[:1].upper() + told[1:]] if told else []
            written += ".PP\n".join(self.paragraphs(text) for text in told + texts[1:])
            for page in pages:
                names = ", ".join(f"\\fB{name}\\fP(3)" for _, name, _ in page.functions)
                written += f".TP\n{names}\n{self.summary(page)}\n"
        return written


def functions_of(program):
    return [(program.name, body) for body in
            re.findall(r"^(?:static |int |void )[^;{]*\n\{.*?^\}", program.read_text(), re.M | re.S)
            if not re.match(r"int main", body)]


def main():
    template, folder, top, *sources = map(pathlib.Path, sys.argv[1:])
    headers = Headers()
    for source in sources:
        if source.suffix == ".h":
            headers.read(source)
    examples = [each for source in sources if source.suffix == ".c" for each in functions_of(source)]
    writer = Writer(headers)
    written = template.read_text()
    heading = re.search(r"^\.TH (.*)", written, re.M)[1].replace("libnvswap", "{}", 1)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in headers.pages:
        first, *others = [name for _, name, _ in page.functions]
        (folder / f"{first}.3").write_text(
            f'.\\" Generated from include/nvswap/{page.header}.\n.TH {heading.format(first)}\n'
            f"{writer.page(page, examples)}")
        for name in others:
            (folder / f"{name}.3").write_text(f".so man3/{first}.3\n")
    conventions = text_of(next(block for block in blocks_of(top.read_text())
                               if block.startswith("/*") and "SPDX" not in block))
    conventions = conventions.partition("\n\n")[2]
    written = written.replace("@conventions@\n", writer.paragraphs(conventions))
    written = written.replace("@functions@\n", writer.sections())
    (folder / "libnvswap.3").write_text(written)


if __name__ == "__main__":
    main()
