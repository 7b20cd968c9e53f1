"""What the scripts that read pages share: a file as text, and the list of what is wrong."""

import os

wrong = []


def check(holds, *words):
    if not holds:
        wrong.append(" ".join(str(word) for word in words))


def read(root, name):
    with open(os.path.join(root, name), encoding="utf-8") as file:
        return file.read()
