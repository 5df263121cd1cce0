// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ConfigFields` reads a model's config.json: it knows alternative field names
// and rejects variants that are not implemented.

#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/json_file.h"
#include "tessera/zoo/formats/field_record.h"
#include "tessera/zoo/layers/rotary.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

using FieldNames = std::initializer_list<const char*>;

/// The tensors of the checkpoint that will be loaded; they decide what
/// config.json leaves open.
class CheckpointTensors {
 public:
  virtual ~CheckpointTensors() = default;
  virtual bool has(const std::string& name) const = 0;
  /// Whether both exist and have different values. May read them.
  virtual bool differ(const std::string& one, const std::string& other)
      const = 0;
};

/// Whether the head of a model of language has a weight of its own.
enum class HeadWeight {
  kAsSaved, ///< config.json and the checkpoint decide
  kOwn, ///< it has, whatever they say
};

/// Whether a model has a pooler: true if its checkpoint has one, or if there is
/// no checkpoint.
/// @param checkpoint may be null.
/// @param prefix of the model's names in checkpoints with heads.
bool has_pooler(const CheckpointTensors* checkpoint, const std::string& prefix);

/// Typed access to fields by alternative names, in order of preference.
class ConfigFields {
 public:
  /// @param origin the name of the object in messages.
  /// @param checkpoint null if there is none; outlives this.
  /// @param record receives what is read; null: a record of its own.
  ConfigFields(
      nlohmann::json object,
      std::string origin,
      const CheckpointTensors* checkpoint = nullptr,
      std::shared_ptr<FieldRecord> record = {},
      HeadWeight head_weight = HeadWeight::kAsSaved)
      : fields_(runtime::json_object(std::move(object), std::move(origin))),
        checkpoint_(checkpoint),
        record_(record ? std::move(record) : std::make_shared<FieldRecord>()),
        head_weight_(head_weight) {}

  /// bool, int64_t, double or std::string; nullopt if all are absent or null.
  template <typename Value>
  std::optional<Value> find(FieldNames names) const {
    for (const char* name : names) {
      if (auto value = fields_.get<Value>(name)) {
        record_->add(name, *value);
        return value;
      }
      if (is_null(name)) {
        record_->add(name, nullptr);
      }
    }
    record_->add_default(*names.begin(), nullptr);
    return std::nullopt;
  }

  /// The same, with a default.
  template <typename Value>
  std::optional<Value> find_or(FieldNames names, std::optional<Value> otherwise)
      const {
    if (auto value = find<Value>(names)) {
      return value;
    }
    if (otherwise) {
      record_->add_default(*names.begin(), *otherwise);
    }
    return otherwise;
  }

  template <typename Value>
  Value get(FieldNames names, Value otherwise) const {
    return *find_or<Value>(names, std::move(otherwise));
  }

  /// Whether the field is null, which for some models is not the same as being
  /// absent.
  bool is_null(const char* name) const {
    return fields_.contains(name) && fields_.value().at(name).is_null();
  }

  /// An integer from 1 to 2^28; larger values indicate a damaged file.
  /// @throws Error if it is out of range, or absent without a default.
  int64_t size(FieldNames names, std::optional<int64_t> otherwise = {}) const;

  /// As size(), for the number of modules to construct: layers, experts.
  /// @throws Error also above 10000: such a file is damaged, and constructing
  ///     the model would exhaust memory.
  int64_t count(FieldNames names, std::optional<int64_t> otherwise = {}) const;

  /// The standard deviation of initial weights.
  /// @throws Error if it is negative.
  double deviation(FieldNames names, double otherwise = 0.02) const;

  /// A dropout probability, by default 0.
  /// @throws Error unless it is at least 0 and below 1.
  double probability(FieldNames names, double otherwise = 0) const;

  /// A finite number.
  /// @throws Error if it is not finite.
  double number(FieldNames names, double otherwise) const;

  /// A number above 0 and below 1e30.
  double positive(FieldNames names, std::optional<double> otherwise = {}) const;

  /// The name of an activation; see zoo/layers/activation.h.
  /// @throws Error on an unknown name, with the nearest known one.
  std::string activation(FieldNames names, const std::string& otherwise) const;

  /// The number of attention heads.
  /// @param names of the field with the number of heads.
  /// @param features_name of the field with `features`.
  /// @throws Error if `features` is not divisible by it.
  int64_t heads(FieldNames names, int64_t features, const char* features_name)
      const;

  /// The number of key/value heads.
  /// @throws Error if `heads` is not divisible by it.
  int64_t kv_heads(FieldNames names, int64_t heads, int64_t otherwise) const;

  /// A token id below `bound`; nullopt if it is null or -1.
  /// @param otherwise for a field that is absent; ignored if it is not below
  ///     `bound`.
  std::optional<int64_t> token(
      FieldNames names,
      int64_t bound,
      std::optional<int64_t> otherwise = {}) const;

  /// @throws Error if the field is given and is not `only`.
  template <typename Value>
  void require_only(const char* name, Value only) const {
    const Value found = get<Value>({name}, only);
    TESSERA_CHECK(
        found == only,
        "{}: '{}' is {}; only {} is implemented",
        origin(),
        name,
        found,
        only);
  }

  /// A nested field, or nullopt.
  std::optional<nlohmann::json> json(const char* name) const;
  /// The same; a field that is absent is not recorded as null. Of those whose
  /// default another field says, or that have no effect.
  std::optional<nlohmann::json> given(const char* name) const;
  /// The same, with a default.
  nlohmann::json json_or(const char* name, nlohmann::json otherwise) const;

  /// The number of labels of a classifier: the size of id2label, else
  /// num_labels, else 2.
  int64_t labels() const;

  /// Rotary positions from `rope_parameters`, or in older files from
  /// `rope_scaling` and `rope_theta`.
  /// @throws Error on a kind that is not implemented, and if both are given
  ///     with different values.
  /// @param base where the file gives none.
  RotaryOptions rotary(
      int64_t features,
      int64_t max_positions,
      double base = 10000) const;

  /// Null if no checkpoint will be loaded.
  const CheckpointTensors* checkpoint() const {
    return checkpoint_;
  }

  HeadWeight head_weight() const {
    return head_weight_;
  }

  const std::string& origin() const {
    return fields_.place();
  }
  /// The fields read so far.
  const FieldRecord& record() const {
    return *record_;
  }

 private:
  void check_rope_fields() const;

  runtime::JsonValue fields_;
  const CheckpointTensors* checkpoint_;
  std::shared_ptr<FieldRecord> record_;
  HeadWeight head_weight_;
};

/// Logs a warning with the fields of a config.json that a model has not read
/// although they may change its results; once per file.
/// @throws Error on those that do change what a model computes, such as
///     `quantization_config` and `final_logit_softcapping`.
void check_unread_fields(
    const nlohmann::json& config,
    const std::string& origin,
    const FieldRecord& record);

/// Whether a head has its own weight although config.json ties it: if that is
/// demanded, or if the files contain both with different values, as
/// transformers then does not tie them.
/// @param embeddings, heads alternative names; the first that exists is used.
bool has_own_head(
    const ConfigFields& fields,
    const std::vector<std::string>& embeddings,
    const std::vector<std::string>& heads);

} // namespace tessera::zoo
