#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tiny data sets for `"task": "examples"` and `"image_folder"`, for
trying their recipes:

    make.py FOLDER

stripes_{train,heldout}.safetensors   images, and which way their stripes run
reversed_{train,heldout}.safetensors  sequences, and the same sequences reversed
counting_{train,heldout}.safetensors  sequences in which each token follows from the one before
stripes/{train,heldout}/CLASS/*.png   such images as files, in a folder per class

Needs nothing but Python. With NumPy, safetensors.numpy.save_file() writes such
files from a dict of arrays.
"""
import array
import json
import pathlib
import random
import struct
import sys
import zlib

CODES = {"U8": "B", "U16": "H", "I64": "q"}
PAD, END, MASK = 0, 1, 2  # tokens; the others are from 3 on
VOCAB = 32


def write(path, tensors):
    """Writes {name: (dtype, shape, flat list of numbers)} as safetensors."""
    header, data = {}, b""
    for name, (dtype, shape, numbers) in tensors.items():
        raw = array.array(CODES[dtype], numbers).tobytes()
        header[name] = {"dtype": dtype, "shape": shape,
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def stripes(draw, rows, size=16):
    """Noisy stripes of any colour: level, upright, or falling."""
    pixels, labels = [], []
    for _ in range(rows):
        label, shift = draw.randrange(3), draw.randrange(4)
        labels.append(label)
        for level in [draw.randrange(80, 200) for _ in "RGB"]:
            for y in range(size):
                for x in range(size):
                    place = (y, x, x + y)[label] + shift
                    bright = level if place // 2 % 2 else level // 4
                    pixels.append(bright + draw.randrange(40))
    return {"pixel_values": ("U8", [rows, 3, size, size], pixels),
            "labels": ("I64", [rows], labels)}


def png(path, size, pixels):
    """Writes a color image. pixels: rows of red, green and blue, as bytes."""
    def chunk(kind, body):
        return (struct.pack(">I", len(body)) + kind + body +
                struct.pack(">I", zlib.crc32(kind + body)))

    rows = b"".join(b"\0" + bytes(pixels[y * size * 3:(y + 1) * size * 3])
                    for y in range(size))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" +
        chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
        chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def stripe_files(draw, folder, count, size=24):
    for number in range(count):
        made = stripes(draw, 1, size)
        planes = made["pixel_values"][2]
        area = size * size
        pixels = [planes[c * area + i] for i in range(area) for c in range(3)]
        label = ("level", "upright", "falling")[made["labels"][2][0]]
        png(folder / label / f"{number:04}.png", size, pixels)


def padded(tokens, length, padding):
    return tokens + [padding] * (length - len(tokens))


def reversed_texts(draw, rows, length=10):
    ids, mask, labels = [], [], []
    for _ in range(rows):
        text = [draw.randrange(3, VOCAB)
                for _ in range(draw.randrange(3, length))]
        ids += padded(text + [END], length, PAD)
        mask += padded([1] * (len(text) + 1), length, 0)
        labels += padded(text[::-1] + [END], length, -100)
    shape = [rows, length]
    return {"input_ids": ("U16", shape, ids),
            "attention_mask": ("U8", shape, mask),
            "labels": ("I64", shape, labels)}


def counting_texts(draw, rows, length=12):
    ids, mask = [], []
    for _ in range(rows):
        first, step = draw.randrange(VOCAB - 3), draw.randrange(1, 4)
        count = draw.randrange(6, length + 1)
        ids += padded([3 + (first + i * step) % (VOCAB - 3)
                       for i in range(count)], length, PAD)
        mask += padded([1] * count, length, 0)
    shape = [rows, length]
    return {"input_ids": ("U16", shape, ids),
            "attention_mask": ("U8", shape, mask)}


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    for name, make in [("stripes", stripes), ("reversed", reversed_texts),
                       ("counting", counting_texts)]:
        for part, rows in [("train", 2048), ("heldout", 256)]:
            path = folder / f"{name}_{part}.safetensors"
            write(path, make(draw, rows))
            print(path)
    for part, count in [("train", 600), ("heldout", 120)]:
        stripe_files(draw, folder / "stripes" / part, count)
        print(folder / "stripes" / part)


if __name__ == "__main__":
    main()
