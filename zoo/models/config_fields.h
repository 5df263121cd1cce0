// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading a model's config.json: the names that its fields have had, and
// variants that are not implemented.

#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/layers/rotary.h"
#include "tessera/zoo/models/field_record.h"

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::zoo {

using FieldNames = std::initializer_list<const char*>;

/// What a config.json leaves open, the checkpoint that will be loaded may tell.
class CheckpointTensors {
 public:
  virtual ~CheckpointTensors() = default;
  virtual bool has(const std::string& name) const = 0;
  /// Whether there are both, with different values. May read them.
  virtual bool differ(const std::string& one, const std::string& other)
      const = 0;
};

/// Whether a head has a weight of its own although config.json ties it: where
/// the files have both with different values, transformers does not tie them.
/// @param embeddings, heads names of either, of which the first counts that is
///     there.
/// @param checkpoint may be null.
bool has_own_head(
    const CheckpointTensors* checkpoint,
    const std::vector<std::string>& embeddings,
    const std::vector<std::string>& heads);

/// Whether a model has a pooler: its checkpoint has one, or there is none yet.
/// @param checkpoint may be null.
/// @param prefix before the model's names in checkpoints with heads.
bool has_pooler(const CheckpointTensors* checkpoint, const std::string& prefix);

/// Typed access by any of the names that a field has had, in the order of
/// preference.
class ConfigFields {
 public:
  /// @param origin of the object, for messages.
  /// @param checkpoint null where there is none; outlives this.
  /// @param record where to note what is read; one of its own where null.
  ConfigFields(
      nlohmann::json object,
      std::string origin,
      const CheckpointTensors* checkpoint = nullptr,
      std::shared_ptr<FieldRecord> record = {})
      : fields_(std::move(object), std::move(origin)),
        checkpoint_(checkpoint),
        record_(record ? std::move(record) : std::make_shared<FieldRecord>()) {}

  /// bool, int64_t, double or std::string; nothing where all are absent or
  /// null.
  template <typename Value>
  std::optional<Value> find(FieldNames names) const {
    for (const char* name : names) {
      if (auto value = fields_.get<Value>(name)) {
        record_->add(name, *value);
        return value;
      }
    }
    record_->add(*names.begin(), nullptr);
    return std::nullopt;
  }

  template <typename Value>
  Value get(FieldNames names, Value otherwise) const {
    return find<Value>(names).value_or(std::move(otherwise));
  }

  /// An integer from 1 to 2^28: more is damage.
  /// @throws Error when it is absent and there is no other, or out of range.
  int64_t size(FieldNames names, std::optional<int64_t> otherwise = {}) const;

  /// As size(), of what modules are made for one by one: layers, experts.
  /// @throws Error also above 10000: such a file is damaged, and building the
  ///     model would take all memory there is.
  int64_t count(FieldNames names, std::optional<int64_t> otherwise = {}) const;

  /// The standard deviation of fresh weights.
  /// @throws Error unless it is at least 0.
  double deviation(FieldNames names, double otherwise = 0.02) const;

  /// A dropout: 0 unless given.
  /// @throws Error unless it is at least 0 and below 1.
  double probability(FieldNames names, double otherwise = 0) const;

  /// A finite number.
  /// @throws Error when it is not.
  double number(FieldNames names, double otherwise) const;

  /// A number above 0 and below 1e30.
  double positive(FieldNames names, std::optional<double> otherwise = {}) const;

  /// The name of an activation; see zoo/layers/activation.h.
  /// @throws Error naming the nearest when there is none of that name.
  std::string activation(FieldNames names, const std::string& otherwise) const;

  /// How many heads share out `features`.
  /// @param names of the field with the heads; `features_name` of the other.
  /// @throws Error when they do not divide them.
  int64_t heads(FieldNames names, int64_t features, const char* features_name)
      const;

  /// The heads of keys and values, of which each serves as many of `heads`.
  /// @throws Error when they do not divide them.
  int64_t kv_heads(FieldNames names, int64_t heads, int64_t otherwise) const;

  /// An id below `bound`; nothing where it is absent, null or -1.
  std::optional<int64_t> token(FieldNames names, int64_t bound) const;

  /// @throws Error when the field is given and is not `only`.
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

  /// A field inside, or nothing.
  std::optional<nlohmann::json> json(const char* name) const;

  /// The number of labels of a classifier: that of id2label, else num_labels,
  /// else 2.
  int64_t labels() const;

  /// Rotary positions from `rope_parameters`, or `rope_scaling` and
  /// `rope_theta`, as older files have them.
  /// @throws Error on a kind that is not implemented.
  RotaryOptions rotary(int64_t features, int64_t max_positions) const;

  /// Null where none will be loaded.
  const CheckpointTensors* checkpoint() const {
    return checkpoint_;
  }

  const std::string& origin() const {
    return fields_.origin();
  }
  /// What was read so far.
  const FieldRecord& record() const {
    return *record_;
  }

 private:
  JsonFields fields_;
  const CheckpointTensors* checkpoint_;
  std::shared_ptr<FieldRecord> record_;
};

} // namespace tessera::zoo
