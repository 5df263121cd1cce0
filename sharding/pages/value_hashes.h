// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ValueHashes` are hashes of values of parameters, by which ranks see that
// they have the same.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::sharding {

class ValueHashes {
 public:
  /// Takes the place of an earlier value of the parameter. Reads all of it on
  /// the host; blocks.
  void add(const std::string& parameter, const at::Tensor& value);

  bool empty() const {
    return hashes_.empty();
  }
  bool contains(const std::string& parameter) const {
    return hashes_.contains(parameter);
  }
  /// The hashes of one parameter.
  ValueHashes of(const std::string& parameter) const;
  /// Of everything added, in whatever order.
  int64_t hash() const;

  /// To send to other ranks.
  std::string to_text() const;
  static ValueHashes from_text(const std::string& text);
  /// @return the parameters whose values are not those of `other`, by name.
  std::vector<std::string> other_than(const ValueHashes& other) const;

 private:
  std::map<std::string, std::string> hashes_; ///< by parameter
};

/// What this rank has written to parameters outside of steps, where others
/// write the same.
struct WrittenValues {
  ValueHashes values;
  ValueHashes experts; ///< of those that only some ranks have
  /// Something was written, also if this rank has nothing of it to compare.
  bool is_pending = false;
  /// The ranks of all pipeline stages write together, not those of one.
  bool on_all_stages = false;
  /// Other pipeline stages have copies of some of it: compared where they
  /// agree.
  bool of_copies = false;
};

/// Between the values of two ranks, for errors.
struct ValueDifference {
  std::string ranks; ///< "rank 0 and rank 2"
  std::string parameters; ///< "'a.weight'", "'a.weight' and 2 more"
};

} // namespace tessera::sharding
