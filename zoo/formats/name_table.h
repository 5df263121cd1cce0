// SPDX-License-Identifier: Apache-2.0
#pragma once
// `NameTable` maps the parameters of a model to the tensors of a transformers
// checkpoint, for loading and saving.

#include "tessera/sharding/weights/load_weights.h"

#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::zoo {

/// One row: a module of theirs and its equivalents here. `*` matches a number,
/// the same ones on both sides; ".weight" and ".bias" are carried over. With
/// several of ours, theirs is their concatenation along the output features.
struct NameRule {
  enum Layout {
    kSame,
    kTransposed, ///< their matrices are [in, out] (Conv1D)
  };

  std::string foreign;
  std::vector<std::string> native;
  Layout layout = kSame;
};

/// A model's table. Every parameter must be in exactly one row, except those of
/// adapters, which have files of their own.
struct NameTable {
  /// The prefix of `base` names in checkpoints of models with a head, such as
  /// "transformer."; checkpoints are read with or without it.
  std::string prefix;
  /// The corresponding prefix in other heads' checkpoints; read, not written.
  std::string other_prefix;
  std::vector<NameRule> base;
  std::vector<NameRule> head; ///< without prefix
  /// Beginnings of names that other versions write, and those that replace
  /// them; read, not written.
  std::vector<std::pair<std::string, std::string>> renamed;
  /// The model has no head: its names are written without the prefix.
  bool is_base = false;
  /// Tensors of theirs that are ignored: buffers of old versions, tied weights
  /// saved twice, heads of other tasks. `*` matches a number, at the end
  /// anything; with or without the prefix.
  std::vector<std::string> ignored;
  /// Pairs of equal tensors of theirs, without prefix: if the files lack the
  /// second, it is read from the first of these that they contain.
  std::vector<std::pair<std::string, std::string>> tied;
  /// Tensors of theirs that are written a second time, and under which name.
  std::map<std::string, std::string> copies;
  /// The parameters are those of a pipeline stage, or some of the experts:
  /// tensors that are in a row but not in the model belong to other ranks.
  bool is_part = false;
  /// The table of an adapter's files: parameters in no row are in other files.
  bool is_adapter = false;
};

/// A tensor of a checkpoint and the parameters that it contains.
struct NamedWeight {
  std::string name; ///< theirs
  std::vector<std::string> native;
  std::vector<std::vector<int64_t>> sizes; ///< whole sizes of ours
  bool transposed = false;

  std::vector<int64_t> shape() const; ///< the shape of theirs
  /// What theirs contains.
  std::vector<MappedWeight> contents() const;
  /// Assembles theirs from all of ours, which must be whole. Contiguous.
  at::Tensor assemble(const std::vector<at::Tensor>& parameters) const;
};

/// A name table resolved for the parameters of one model.
class WeightNames {
 public:
  /// Parameters may be sharded, without memory, or a tensor-parallel rank's
  /// partitions.
  /// @throws tessera::Error if a parameter is in no row or in several.
  WeightNames(const torch::nn::Module& module, const NameTable& table);

  /// The same for a whole model of which this rank may hold a part only: for
  /// saving.
  /// @param sizes of the parameters, by name.
  WeightNames(
      const std::map<std::string, std::vector<int64_t>>& sizes,
      const NameTable& table);

  /// All tensors of a checkpoint, by name.
  const std::vector<NamedWeight>& weights() const {
    return weights_;
  }
  /// See NameTable::copies.
  const std::map<std::string, std::string>& copies() const {
    return table_.copies;
  }
  /// Whether one of our parameters is in these files.
  bool has(const std::string& our_name) const {
    return indices_.contains(our_name);
  }
  bool has_any(const std::vector<std::string>& our_names) const {
    return std::any_of(
        our_names.begin(), our_names.end(), [&](const std::string& name) {
          return has(name);
        });
  }
  /// The tensor that contains one of our parameters, and its index in `native`.
  const NamedWeight& of(const std::string& our_name, size_t* index) const;

  /// The names of these tensors by those of the parameters in them, for
  /// EngineOptions and LoadWeightsOptions.
  OtherNames by_parameter() const;

  /// For load_weights(). The result does not depend on the lifetime of the
  /// module.
  /// @param in_files all names of the checkpoint, for NameTable::tied.
  WeightMap map(const std::vector<std::string>& in_files = {}) const;

 private:
  void add_weights(const std::map<std::string, std::vector<int64_t>>& sizes);

  NameTable table_;
  std::vector<NamedWeight> weights_;
  std::map<std::string, std::pair<size_t, size_t>> indices_; ///< by our names
};

} // namespace tessera::zoo
