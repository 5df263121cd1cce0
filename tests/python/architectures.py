# SPDX-License-Identifier: Apache-2.0
"""Tiny models of many architectures of transformers, with batches and losses.

None is special to the engine: a row is a configuration, and what its forward
takes.
"""
import torch
import transformers as tf

VOCABULARY = 96
LENGTH = 12
ROWS = 2


def ids(generator, length=LENGTH, vocabulary=VOCABULARY):
    return torch.randint(3, vocabulary, (ROWS, length), generator=generator)


def causal(generator):
    tokens = ids(generator)
    return {"input_ids": tokens, "labels": tokens}


def masked(generator):
    tokens = ids(generator)
    labels = torch.where(
        torch.rand(tokens.shape, generator=generator) < 0.5, tokens, -100)
    labels[:, 0] = tokens[:, 0]
    return {"input_ids": tokens, "labels": labels}


def sequence_to_sequence(generator):
    return {"input_ids": ids(generator), "labels": ids(generator, 7)}


def classes(generator):
    return {"input_ids": ids(generator),
            "labels": torch.randint(0, 2, (ROWS,), generator=generator)}


def images(generator, size=32, classes=4):
    return {"pixel_values": torch.randn(
                (ROWS, 3, size, size), generator=generator),
            "labels": torch.randint(0, classes, (ROWS,), generator=generator)}


def pictures(size=32, key="labels"):
    def make(generator):
        batch = images(generator, size)
        return batch if key else {"pixel_values": batch["pixel_values"]}
    return make


def speech_classes(generator):
    return {"input_values": torch.randn((ROWS, 800), generator=generator),
            "labels": torch.randint(0, 2, (ROWS,), generator=generator)}


def speech_to_text(generator):
    return {"input_features": torch.randn((ROWS, 8, 60), generator=generator),
            "labels": ids(generator, 7)}


def image_and_text(generator):
    return {"input_ids": ids(generator),
            "pixel_values": torch.randn((ROWS, 3, 32, 32), generator=generator),
            "return_loss": True}


# Names of sizes that differ between families.
LLAMA_LIKE = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, pad_token_id=0)
BERT_LIKE = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48,
    num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64,
    pad_token_id=0)
T5_LIKE = dict(
    vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2,
    num_decoder_layers=2, num_heads=4, pad_token_id=0,
    decoder_start_token_id=0)
BART_LIKE = dict(
    vocab_size=VOCABULARY, d_model=32, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48,
    decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=0,
    bos_token_id=1, eos_token_id=2, decoder_start_token_id=2,
    forced_eos_token_id=2)
MOE = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16)
VIT_LIKE = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2,
    num_attention_heads=4, image_size=32, patch_size=8, num_labels=4)
SPEECH = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
    intermediate_size=48, conv_dim=(16, 16), conv_stride=(5, 4),
    conv_kernel=(10, 8), num_conv_pos_embeddings=16,
    num_conv_pos_embedding_groups=4, num_feat_extract_layers=2,
    classifier_proj_size=16, mask_time_prob=0.0, apply_spec_augment=False)

# name: (class, configuration class, values, batch)
ARCHITECTURES = {
    # Decoders.
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", dict(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4,
        n_positions=64), causal),
    "gpt_neo": ("GPTNeoForCausalLM", "GPTNeoConfig", dict(
        vocab_size=VOCABULARY, hidden_size=32, num_layers=2, num_heads=4,
        attention_types=[[["global", "local"], 1]], window_size=8,
        max_position_embeddings=64), causal),
    "gpt_neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", BERT_LIKE, causal),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", dict(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=8,
        n_positions=64), causal),
    "opt": ("OPTForCausalLM", "OPTConfig", dict(
        vocab_size=VOCABULARY, hidden_size=32, ffn_dim=48,
        num_hidden_layers=2, num_attention_heads=4, word_embed_proj_dim=16,
        max_position_embeddings=64, pad_token_id=0), causal),
    "bloom": ("BloomForCausalLM", "BloomConfig", dict(
        vocab_size=VOCABULARY, hidden_size=32, n_layer=2, n_head=4), causal),
    "falcon": ("FalconForCausalLM", "FalconConfig", dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
        num_attention_heads=4), causal),
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA_LIKE, causal),
    "mistral": ("MistralForCausalLM", "MistralConfig", LLAMA_LIKE, causal),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA_LIKE, causal),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", dict(
        LLAMA_LIKE, head_dim=8), causal),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", dict(
        LLAMA_LIKE, head_dim=8), causal),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", dict(
        LLAMA_LIKE, head_dim=8, query_pre_attn_scalar=8), causal),
    "phi": ("PhiForCausalLM", "PhiConfig", LLAMA_LIKE, causal),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", LLAMA_LIKE, causal),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", LLAMA_LIKE, causal),
    "starcoder2": (
        "Starcoder2ForCausalLM", "Starcoder2Config", LLAMA_LIKE, causal),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", LLAMA_LIKE, causal),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", LLAMA_LIKE, causal),
    "granite": ("GraniteForCausalLM", "GraniteConfig", LLAMA_LIKE, causal),
    "cohere": ("CohereForCausalLM", "CohereConfig", LLAMA_LIKE, causal),
    "glm": ("GlmForCausalLM", "GlmConfig", dict(
        LLAMA_LIKE, head_dim=8), causal),
    "codegen": ("CodeGenForCausalLM", "CodeGenConfig", dict(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, rotary_dim=8,
        n_positions=64), causal),
    "biogpt": ("BioGptForCausalLM", "BioGptConfig", BERT_LIKE, causal),
    "xglm": ("XGLMForCausalLM", "XGLMConfig", dict(
        vocab_size=VOCABULARY, d_model=32, ffn_dim=48, num_layers=2,
        attention_heads=4, max_position_embeddings=64, pad_token_id=0),
        causal),
    # Mixtures of experts.
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", dict(
        LLAMA_LIKE, num_local_experts=4, num_experts_per_tok=2), causal),
    "qwen2_moe": ("Qwen2MoeForCausalLM", "Qwen2MoeConfig", dict(
        LLAMA_LIKE, **MOE, shared_expert_intermediate_size=16), causal),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", dict(
        LLAMA_LIKE, **MOE, head_dim=8), causal),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", dict(
        LLAMA_LIKE, num_experts=4, num_experts_per_tok=2), causal),
    # State spaces and other recurrences.
    "mamba": ("MambaForCausalLM", "MambaConfig", dict(
        vocab_size=VOCABULARY, hidden_size=32, state_size=4,
        num_hidden_layers=2, expand=2, conv_kernel=4, time_step_rank=4,
        pad_token_id=0), causal),
    "mamba2": ("Mamba2ForCausalLM", "Mamba2Config", dict(
        vocab_size=VOCABULARY, hidden_size=32, state_size=8,
        num_hidden_layers=2, expand=2, conv_kernel=4, num_heads=8, head_dim=8,
        n_groups=2, chunk_size=4, pad_token_id=0, bos_token_id=1,
        eos_token_id=2), causal),
    "rwkv": ("RwkvForCausalLM", "RwkvConfig", dict(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2,
        intermediate_size=48, context_length=64), causal),
    # Encoders.
    "bert": ("BertForMaskedLM", "BertConfig", BERT_LIKE, masked),
    "bert_classes": (
        "BertForSequenceClassification", "BertConfig", BERT_LIKE, classes),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", BERT_LIKE, masked),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", dict(
        BERT_LIKE, embedding_size=16), masked),
    "deberta_v2": ("DebertaV2ForMaskedLM", "DebertaV2Config", dict(
        BERT_LIKE, relative_attention=True, pos_att_type=["p2c", "c2p"],
        position_buckets=8, norm_rel_ebd="layer_norm"), masked),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", dict(
        BERT_LIKE, embedding_size=16), masked),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", dict(
        vocab_size=VOCABULARY, dim=32, hidden_dim=48, n_layers=2, n_heads=4,
        max_position_embeddings=64), masked),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", BERT_LIKE, masked),
    "modernbert": ("ModernBertForMaskedLM", "ModernBertConfig", dict(
        BERT_LIKE, global_attn_every_n_layers=2, local_attention=8,
        attn_implementation="eager", cls_token_id=1, sep_token_id=2,
        bos_token_id=1, eos_token_id=2), masked),
    "longformer": ("LongformerForMaskedLM", "LongformerConfig", dict(
        BERT_LIKE, attention_window=8), masked),
    "funnel": ("FunnelForMaskedLM", "FunnelConfig", dict(
        vocab_size=VOCABULARY, block_sizes=[1, 1], d_model=32, n_head=4,
        d_head=8, d_inner=48, num_decoder_layers=1), masked),
    # Encoder-decoders.
    "t5": ("T5ForConditionalGeneration", "T5Config", T5_LIKE,
           sequence_to_sequence),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5_LIKE,
            sequence_to_sequence),
    "bart": ("BartForConditionalGeneration", "BartConfig", BART_LIKE,
             sequence_to_sequence),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", BART_LIKE,
              sequence_to_sequence),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", BART_LIKE,
                sequence_to_sequence),
    "marian": ("MarianMTModel", "MarianConfig", dict(
        BART_LIKE, decoder_vocab_size=VOCABULARY), sequence_to_sequence),
    # Vision.
    "vit": ("ViTForImageClassification", "ViTConfig", VIT_LIKE, images),
    "deit": ("DeiTForImageClassification", "DeiTConfig", VIT_LIKE, images),
    "beit": ("BeitForImageClassification", "BeitConfig", dict(
        VIT_LIKE, vocab_size=VOCABULARY), images),
    "swin": ("SwinForImageClassification", "SwinConfig", dict(
        image_size=32, patch_size=4, embed_dim=16, depths=[1, 1],
        num_heads=[2, 4], window_size=4, num_labels=4), images),
    "convnext": ("ConvNextForImageClassification", "ConvNextConfig", dict(
        hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, image_size=32,
        num_labels=4), images),
    "resnet": ("ResNetForImageClassification", "ResNetConfig", dict(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1],
        layer_type="basic", num_labels=4), images),
    "vit_mae": ("ViTMAEForPreTraining", "ViTMAEConfig", dict(
        VIT_LIKE, decoder_hidden_size=16, decoder_intermediate_size=32,
        decoder_num_hidden_layers=1, decoder_num_attention_heads=2),
        pictures(key=None)),
    "clip": ("CLIPModel", "CLIPConfig", dict(
        text_config=dict(BERT_LIKE, eos_token_id=2, bos_token_id=1),
        vision_config={key: value for key, value in VIT_LIKE.items()
                       if key != "num_labels"},
        projection_dim=16), image_and_text),
    # Speech.
    "wav2vec2": ("Wav2Vec2ForSequenceClassification", "Wav2Vec2Config",
                 SPEECH, speech_classes),
    "hubert": ("HubertForSequenceClassification", "HubertConfig", SPEECH,
               speech_classes),
    "whisper": ("WhisperForConditionalGeneration", "WhisperConfig", dict(
        BART_LIKE, num_mel_bins=8, max_source_positions=30,
        max_target_positions=64), speech_to_text),
}


def make_model(name, seed=0):
    """In training mode, without dropout, the same on every rank."""
    model_class, config_class, values, _ = ARCHITECTURES[name]
    torch.manual_seed(seed)
    config = getattr(tf, config_class)(**values)
    for key, value in config.to_dict().items():
        if ("drop" in key) and isinstance(value, float):
            setattr(config, key, 0.0)
    model = getattr(tf, model_class)(config)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.train()


def make_batch(name, seed):
    return ARCHITECTURES[name][3](torch.Generator().manual_seed(seed))


def loss_of(model, batch, noise_seed):
    """Some models draw random numbers, such as ViT-MAE's masks."""
    torch.manual_seed(noise_seed)
    return model(**batch).loss
