// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which models there are, and making one from a config.json.

#include "tessera/zoo/layers/layer_context.h"
#include "tessera/zoo/models/config_fields.h"
#include "tessera/zoo/models/model.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace tessera::zoo {

/// Makes the model of one architecture.
/// @param json the whole config.json, to be kept; `fields` reads it.
using MakeModel = std::function<std::shared_ptr<Model>(
    const ConfigFields& fields,
    const LayerContext& context,
    nlohmann::json json)>;

struct Architecture {
  std::string name; ///< transformers' class, as "GPT2LMHeadModel"
  MakeModel make;
};

/// The models of one `model_type`.
struct ModelFamily {
  std::string model_type; ///< as in config.json: "gpt2"
  /// The first is made where config.json names none.
  std::vector<Architecture> architectures;
};

/// Adds a family to those that come with Tessera. Not to be called while
/// another thread uses the registry.
/// @throws tessera::Error when there is one of that type.
void register_model(ModelFamily family);

/// All families, by model_type.
std::vector<std::string> registered_models();

/// The architecture of config.json's family whose name ends with `head`.
/// @throws tessera::Error when there is none, naming those there are.
std::string architecture_with_head(
    const nlohmann::json& config,
    const std::string& head,
    const std::string& origin = "config.json");

/// The architecture of config.json's family that gives hidden states of a text:
/// its encoder alone where there is one, else its base.
std::string base_architecture(
    const nlohmann::json& config,
    const std::string& origin = "config.json");

struct FromConfigOptions {
  /// Overrides config.json's, to read an encoder as a classifier, say.
  std::string architecture;
  LayerContext context; ///< plain or tensor-parallel layers
  /// Of the checkpoint that will be loaded, for what config.json leaves open:
  /// whether a head is tied. Empty where there is none.
  HasTensor has_tensor;
  /// Gets what was read of config.json, for later messages. May be null.
  std::shared_ptr<FieldRecord> record;
};

/// A model with fresh weights. With a group it has no memory until
/// init_parameters() and materialize() or wrap().
/// @param config the content of a config.json; ModelCenter's names are taken as
///     well, see model_center.h.
/// @param origin what to call it in messages.
/// @throws tessera::Error naming the field on unknown types, architectures and
///     variants that are not implemented.
std::shared_ptr<Model> from_config(
    const nlohmann::json& config,
    const FromConfigOptions& options = {},
    const std::string& origin = "config.json");

} // namespace tessera::zoo
