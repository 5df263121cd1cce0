// SPDX-License-Identifier: Apache-2.0
#pragma once
// Reading a model's config.json: the names that its fields have had, and
// variants that are not implemented.

#include "tessera/zoo/json_fields.h"
#include "tessera/zoo/layers/rotary.h"
#include "tessera/zoo/models/field_record.h"

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>

namespace tessera::zoo {

using FieldNames = std::initializer_list<const char*>;

/// Whether a checkpoint has a tensor of that name.
using HasTensor = std::function<bool(const std::string& name)>;

/// Typed access by any of the names that a field has had, in the order of
/// preference.
class ConfigFields {
 public:
  /// @param origin of the object, for messages.
  /// @param has_tensor see FromConfigOptions; empty where there is no
  ///     checkpoint.
  /// @param record where to note what is read; one of its own where null.
  ConfigFields(
      nlohmann::json object,
      std::string origin,
      HasTensor has_tensor = {},
      std::shared_ptr<FieldRecord> record = {})
      : fields_(std::move(object), std::move(origin)),
        has_tensor_(std::move(has_tensor)),
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
        origin(),
        ": '",
        name,
        "' is ",
        found,
        "; only ",
        only,
        " is implemented");
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

  /// What a config.json leaves open, the checkpoint that is to be loaded may
  /// tell; nothing where there is none.
  std::optional<bool> checkpoint_has(const std::string& name) const {
    return has_tensor_ ? std::optional<bool>(has_tensor_(name)) : std::nullopt;
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
  HasTensor has_tensor_;
  std::shared_ptr<FieldRecord> record_;
};

} // namespace tessera::zoo
