"""Reads a bundle (docs/bundle.md) with nothing beyond the standard library: verifies it, and tells what a call consists of.

    python3 read_bundle.py NAME.stplan
"""

import hashlib
import json
import struct
import sys
import zipfile

BYTES = {"U16": 2, "U32": 4, "U64": 8, "F16": 2, "BF16": 2, "F32": 4, "F64": 8}
MASK = (1 << 64) - 1


def read(path):
    """The manifest and the members by their paths, every one of them verified."""
    with zipfile.ZipFile(path) as archive:
        members = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    manifest = json.loads(members["manifest.json"])
    assert manifest["format"] == "sparsetune bundle" and manifest["version"] in (1, 2, 3), "not a bundle of a version that this program reads"
    assert set(members) == {"manifest.json", *manifest["members"]}, "members and manifest differ"
    for name, listed in manifest["members"].items():
        sound = len(members[name]) == listed["bytes"] and hashlib.sha256(members[name]).hexdigest() == listed["sha256"]
        assert sound, f"{name} is damaged"
    return manifest, members


def tensors(member):
    """The element type and the bytes of every tensor of a safetensors file."""
    size = int.from_bytes(member[:8], "little")
    header = json.loads(member[8 : 8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, tensor in header.items():
        begin, end = (8 + size + at for at in tensor["data_offsets"])
        assert end - begin == tensor["shape"][0] * BYTES[tensor["dtype"]], f"tensor {name} has another length"
        found[name] = tensor["dtype"].lower(), member[begin:end]
    return found


def drawn(seed, scale, element, length):
    """The dense operand of the check, as it lies in memory."""
    values = []
    for i in range(length):
        z = (seed + 0x9E3779B97F4A7C15 * (i + 1)) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        z ^= z >> 31
        values.append(scale * (2 * (z >> 11) / 2**53 - 1) if element == "f64" else (z >> 40) / 2**23 - 1)
    if element == "bf16":
        # The upper halves of f32, to nearest, ties to even.
        words = struct.unpack(f"<{length}I", struct.pack(f"<{length}f", *values))
        return struct.pack(f"<{length}H", *((word + 0x7FFF + (word >> 16 & 1)) >> 16 for word in words))
    return struct.pack(f"<{length}{ {'f16': 'e', 'f32': 'f', 'f64': 'd'}[element] }", *values)


def main(path):
    manifest, members = read(path)
    target, call, forward = manifest["target"], manifest["call"], manifest["forward"]
    print(f"plan {manifest['plan']}: {manifest['problem']} on {target['name']} ({target['compute_capability']})")
    for side in "b", "c":
        print(f"  {side}: {call[side]['rows']} x {call[side]['cols']} {call[side]['element']}, {call[side]['layout']}-major")
    stored = tensors(members["arrays.safetensors"])
    for array in manifest["arrays"]:
        if array["included"]:
            element, data = stored[array["name"]]
            assert element == array["element"] and len(data) == array["length"] * BYTES[element.upper()]
        print(f"  array {array['name']}: {array['length']} x {array['element']}, {'here' if array['included'] else 'left out'}")
    if forward["kind"] == "cuda":
        for step in forward["steps"]:
            print(f"  launch {step['symbol']}: grid {step['grid']}, block {step['block']}, {step['shared_bytes']} bytes of shared memory")
            print("   ", ", ".join(" ".join(str(value) for value in argument.values()) for argument in step["arguments"]))
    else:
        print("  call", forward.get("program") or f"{forward['function']} ({forward['algorithm']}) of {forward['library']}")
    check = manifest["check"]
    b = drawn(check["seed"], check["scale"], call["b"]["element"], call["b"]["rows"] * call["b"]["cols"])
    assert hashlib.sha256(b).hexdigest() == check["b_sha256"], "the inputs of the check are others"
    print(f"  check: {check['samples']} samples; the inputs of the check are as they were when the bundle was made")


if __name__ == "__main__":
    main(sys.argv[1])
