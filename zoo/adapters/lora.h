// SPDX-License-Identifier: Apache-2.0
#pragma once
// LoRA adapters (arXiv:2106.09685) for the zoo's models, loaded from and saved
// to PEFT folders.
//
//     auto model = zoo::from_pretrained("llama", {.lazy = true});
//     zoo::apply_lora(*model, {.r = 16, .alpha = 32,
//                              .target_modules = {{"q_proj", "v_proj"}}});
//     auto engine = wrap(model, options);    // or torch::optim, without one
//     ...
//     zoo::save_lora(engine, *model, "adapter");     // for PEFT
//     zoo::save_merged(engine, *model, "merged");    // for transformers

#include "tessera/zoo/adapters/lora_config.h"
#include "tessera/zoo/models/pretrained.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace tessera::zoo {

class LoraLayer;

/// Whether PEFT gives the embedding and the head that share a weight one each,
/// for FromPretrainedOptions::unties. The function throws tessera::Error if
/// PEFT could not train what modules_to_save names.
std::function<bool(const TiedHead&)> unties_of(const LoraConfig& config);

/// The configuration with the newly initialized modules of the model
/// (Model::newly_initialized()) in modules_to_save: they are trained, and files
/// of the adapter have them, as no other files do.
/// @throws tessera::Error if a weight of the model itself is among them, which
///     PEFT cannot save.
LoraConfig with_new_modules(const Model& model, LoraConfig config);

/// Freezes the model and adds A and B to the linear layers that the
/// configuration names; the biases and whole modules that it names, and newly
/// initialized ones (with_new_modules()), stay trainable. Layers may be plain
/// or tensor-parallel, the model lazy or a pipeline stage. Frozen parameters
/// have no gradients and no optimizer state. For one configuration and seed,
/// the initial adapters are the same on any number of ranks. Call it before
/// wrap(). With LoraConfig::use_dora, weights must have their values, or, if
/// they are lazy, where to get them (load_weights(), init_parameters()); it is
/// then collective over a tensor-parallel group.
/// @return the layers that got an adapter, by their names in checkpoints.
/// @throws tessera::Error, with the model unchanged, if no module matches, if a
///     named module is not a linear layer, if the model already has adapters,
///     if it is wrapped, if it shares a weight that unties_of() divides, or as
///     with_new_modules().
std::vector<std::string> apply_lora(
    Model& model,
    const LoraConfig& config,
    uint64_t seed = 0);

/// The configuration given to apply_lora() or load_lora(), with its task filled
/// in.
/// @throws tessera::Error if the model has no adapters.
const LoraConfig& lora_config(const Model& model);

/// The names of the trained parameters in a PEFT folder: A and B as
/// "base_model.model.h.0.attn.c_attn.lora_A.weight".
WeightNames lora_names(const Model& model);

/// The rules of LoRA+ (arXiv:2402.12354) for OptimizerOptions::parameters, as
/// PEFT's create_loraplus_optimizer() groups parameters: all B, and what is
/// trained of one dimension, such as biases and magnitudes, have `ratio` times
/// the learning rate; biases and weights of norms among them no weight decay.
/// @throws tessera::Error if the model has no adapters.
std::vector<ParameterRule> lora_plus_rules(const Model& model, double ratio);

/// Adds all adapters to the weights in place and removes them; the parameters
/// that were trainable before apply_lora() are trainable again. Collective over
/// a tensor-parallel group with LoraConfig::use_dora, otherwise not; not for a
/// wrapped model.
/// @throws tessera::Error if the model has no adapters, is wrapped, or has no
///     memory.
void merge_lora(Model& model);

/// Removes all adapters without adding them to the weights; otherwise as
/// merge_lora(). The model may be without memory.
void remove_lora(Model& model);

/// Whether the model has adapters.
bool has_lora(const Model& model);

/// Switches all adapters off as long as it lives: the model computes what its
/// base computes. On all ranks that divide the model.
class [[nodiscard]] AdaptersOff {
 public:
  /// @param model must outlive this object.
  /// @throws tessera::Error if the model has no adapters, or if parts of the
  ///     base are trained with them (LoraConfig::bias, ::modules_to_save) or
  ///     were taken from it (LoraInit::kPissa), which then would not be what
  ///     they were.
  explicit AdaptersOff(const Model& model);
  ~AdaptersOff();
  AdaptersOff(const AdaptersOff&) = delete;
  AdaptersOff& operator=(const AdaptersOff&) = delete;

 private:
  std::vector<LoraLayer*> adapters_;
};

/// Writes adapter_config.json and adapter_model.safetensors, as PEFT does; the
/// folder appears whole or not at all. Collective over a tensor-parallel group,
/// whose first rank writes. Blocks on the disk.
/// @throws tessera::Error, also if the folder holds other files.
void save_lora(const Model& model, const std::filesystem::path& folder);

/// The same for a wrapped model or its pipeline stages; rank 0 writes.
/// Collective.
void save_lora(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder);

/// apply_lora() with the configuration, as it is, and the values of a PEFT
/// folder.
/// @return the configuration.
/// @throws tessera::Error naming the file and what is missing, unexpected, of
///     the wrong shape, or not implemented.
LoraConfig load_lora(Model& model, const std::filesystem::path& folder);

/// Loads the values of such a folder into the existing adapters of a wrapped
/// model. Collective.
void load_lora(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder);

/// Returns a function that changes base weights to what merge_lora() would make
/// of them: for save_pretrained() and export_gguf(). Keeps the whole A and B of
/// all adapters on the rank that writes. Collective over a tensor-parallel
/// group.
/// @throws tessera::Error if the model has newly initialized weights that the
///     adapter does not have.
SavedValue merged_values(const Model& model);

/// save_pretrained() of the model that merge_lora() would produce; the model
/// itself is unchanged. Needs additional memory for all adapters. Collective as
/// save_pretrained().
void save_merged(
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {});
void save_merged(
    Engine& engine,
    const Model& model,
    const std::filesystem::path& folder,
    const std::filesystem::path& tokenizer_folder = {});

} // namespace tessera::zoo
