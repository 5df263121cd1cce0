// SPDX-License-Identifier: Apache-2.0
#pragma once
// gguf_tokenizer() converts a folder's tokenizer to GGUF metadata.

#include "tessera/zoo/gguf/gguf_writer.h"

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>

namespace tessera::zoo {

/// Returns the entries "tokenizer.ggml.*" for a folder's tokenizer.json and
/// tokenizer_config.json: byte-level BPE (GPT-2, LLaMA 3, Qwen) and BPE with
/// byte fallback (LLaMA 1 and 2). Without a folder or a tokenizer.json, the
/// entries state that the file has no tokenizer.
/// @param config of the model, for ids of special tokens.
/// @param vocab_size rows of the embedding; ids without a token get a filler.
/// @throws tessera::Error naming the file, on a tokenizer type or a
///     pre-tokenization rule that is not supported.
GgufMetadata gguf_tokenizer(
    const std::filesystem::path& folder,
    const nlohmann::json& config,
    int64_t vocab_size);

} // namespace tessera::zoo
