# SPDX-License-Identifier: Apache-2.0
"""Small random models of transformers, for suites whose reference is there."""
import torch
import transformers as hf

VOCABULARY = 64
DECODER = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=32, bos_token_id=1, eos_token_id=2, pad_token_id=0)
ENCODER = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48,
    num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=40,
    num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GPT2 = dict(vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4,
            n_positions=32, bos_token_id=1, eos_token_id=2, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0)
T5 = dict(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2,
          num_heads=4, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1,
          dropout_rate=0.0)


def decoder(kind, tied, **more):
    config = getattr(hf, kind + "Config")(
        **{**DECODER, **more}, tie_word_embeddings=tied)
    return getattr(hf, kind + "ForCausalLM")(config)


MAKERS = {
    "llama": lambda tied: decoder("Llama", tied),
    "qwen2": lambda tied: decoder("Qwen2", tied),
    "qwen3": lambda tied: decoder("Qwen3", tied, head_dim=8),
    "gpt2": lambda tied: hf.GPT2LMHeadModel(
        hf.GPT2Config(**GPT2, tie_word_embeddings=tied)),
    "opt": lambda tied: hf.OPTForCausalLM(hf.OPTConfig(
        vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=32, dropout=0.0,
        word_embed_proj_dim=32, tie_word_embeddings=tied)),
    "glm4": lambda tied: decoder("Glm4", tied, head_dim=8),
    "t5": lambda tied: hf.T5ForConditionalGeneration(
        hf.T5Config(**T5, tie_word_embeddings=tied)),
    "bert": lambda tied: hf.BertForSequenceClassification(
        hf.BertConfig(**ENCODER)),
    "roberta": lambda tied: hf.RobertaForSequenceClassification(
        hf.RobertaConfig(**ENCODER, pad_token_id=1)),
}
DECODERS = ["llama", "qwen2", "qwen3", "gpt2", "opt", "glm4"]
TIED = [*DECODERS, "t5"]


def make(name, tied, seed):
    torch.manual_seed(seed)
    model = MAKERS[name](tied)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    return model.eval()


def inputs_of(name, seed):
    generator = torch.Generator().manual_seed(seed)

    def tokens():
        return torch.randint(3, VOCABULARY, (2, 7), generator=generator)
    batch = {"input_ids": tokens()}
    if name == "t5":
        batch["decoder_input_ids"] = tokens()
    return batch


def largest_difference(ours, theirs):
    if ours.shape != theirs.shape:
        return float("inf")
    scale = max(1.0, theirs.abs().max().item())
    return (ours.float() - theirs.float()).abs().max().item() / scale
