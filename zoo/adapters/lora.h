// SPDX-License-Identifier: Apache-2.0
#pragma once
// Adapters of low rank for the zoo's models (LoRA, arXiv:2106.09685), from and
// to PEFT's folders.
//
//     auto model = zoo::from_pretrained("llama", {.lazy = true});
//     zoo::apply_lora(*model, {.r = 16, .alpha = 32,
//                              .target_modules = {{"q_proj", "v_proj"}}});
//     auto engine = wrap(model, options);      // or torch::optim, without one
//     ...
//     zoo::save_lora(world, engine, *model, "adapter");     // PEFT loads it
//     zoo::save_merged(world, engine, *model, "merged");    // transformers
//     does

#include "tessera/zoo/adapters/lora_config.h"
#include "tessera/zoo/models/pretrained.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Freezes the model and adds A and B to the linear layers that the
/// configuration names; what it says of biases and whole modules stays
/// trainable. Layers may be plain or tensor-parallel, the model lazy or a
/// pipeline's stage. Frozen parameters have no gradients and no optimizer
/// state. The adapters of one configuration and seed are the same on any number
/// of ranks. Before wrap().
/// @return the layers that got an adapter, by their names in checkpoints.
/// @throws tessera::Error, with the model unchanged, when nothing is named,
///     something that is no linear layer is, the model has adapters already, or
///     it is wrapped.
std::vector<std::string> apply_lora(
    Model& model,
    const LoraConfig& config,
    uint64_t seed = 0);

/// What apply_lora() or load_lora() was given, its task filled in.
/// @throws tessera::Error when the model has no adapters.
const LoraConfig& lora_config(const Model& model);

/// How a folder of PEFT's names and keeps what is trained: A and B as
/// "base_model.model.h.0.attn.c_attn.lora_A.weight".
WeightNames lora_names(const Model& model);

/// Adds all adapters to the weights in place and takes them out; parameters are
/// trainable again as they were. Not collective; not for a wrapped model.
/// @throws tessera::Error when the model has none, is wrapped, or has no
/// memory.
void merge_lora(Model& model);

/// Takes all adapters out, without adding them to the weights; otherwise as
/// merge_lora(). The model may be without memory.
void remove_lora(Model& model);

/// Writes adapter_config.json and adapter_model.safetensors, as PEFT does; the
/// folder appears whole or not at all. Collective over a tensor-parallel group,
/// whose first rank writes. Blocks on the disk.
/// @throws tessera::Error, also when the folder holds other files.
void save_lora(const Model& model, const std::filesystem::path& folder);

/// The same for a wrapped model, or stages of one; rank 0 writes. Collective.
void save_lora(
    const World& world,
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder);

/// apply_lora() with the configuration and the values of a folder of PEFT's.
/// @return the configuration.
/// @throws tessera::Error naming the file and what is missing, unexpected, of
///     the wrong shape, or not implemented.
LoraConfig load_lora(Model& model, const std::filesystem::path& folder);

/// The values of such a folder into the adapters of a wrapped model, which has
/// them already. Collective.
void load_lora(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder);

/// What merge_lora() would make of the parameters that go by: for
/// save_pretrained() and export_gguf(). Keeps whole A and B of all adapters, on
/// the rank that writes. Collective over a tensor-parallel group.
SavedValue merged_values(const Model& model);

/// save_pretrained() of the model that merge_lora() would make, which itself
/// stays as it is. Needs the memory of all adapters beside it. Collective as
/// save_pretrained().
void save_merged(
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {});
void save_merged(
    const World& world,
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {});

} // namespace tessera::zoo
