// SPDX-License-Identifier: Apache-2.0
#pragma once
// `Pickle` is the content of a Python pickle as plain values.
//
// [Note: inert pickles] A pickle is a program whose opcodes may call any
// function of Python. Here nothing is ever called: what Python would compute -
// `REDUCE`, `NEWOBJ`, `BUILD` - becomes a value that says which global was
// asked for and with which arguments, and the reader decides what the few that
// it knows mean. A global that is not in the caller's closed list ends the
// reading with its name, so that a file that would do harm elsewhere is not
// taken for a good one.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::runtime {

enum class PickleKind {
  kNone,
  kBool,
  kInt, ///< `integer`, or in `text` its bytes if it needs more than 64 bits
  kFloat,
  kString,
  kBytes,
  kTuple,
  kList,
  kDict, ///< collections.OrderedDict too
  kSet,
  kGlobal, ///< `text` is "module.name"
  kObject, ///< what the global `of` would make of `arguments`
  kPersistent, ///< an object outside of the pickle; `of` is its id
};

/// A value; others that it refers to live in the same Pickle, and may refer
/// back to it.
struct PickleNode {
  PickleKind kind = PickleKind::kNone;
  int64_t integer = 0;
  double number = 0;
  std::string text;
  /// Elements; of a dictionary, keys and values alternate. Objects have items
  /// too, if they were filled like lists or dictionaries.
  std::vector<const PickleNode*> items;
  const PickleNode* of = nullptr;
  const PickleNode* arguments = nullptr; ///< a tuple
  const PickleNode* state = nullptr; ///< of BUILD

  bool is(PickleKind wanted) const {
    return kind == wanted;
  }
  bool is_string(std::string_view wanted) const {
    return kind == PickleKind::kString && text == wanted;
  }
  /// The name of the global that makes this object; empty for other kinds.
  std::string_view made_by() const;
  /// The value of a string key in the items; null if there is none.
  const PickleNode* find(std::string_view key) const;
  /// An attribute of an object whose state is a dictionary; null if it has
  /// none.
  const PickleNode* attribute(std::string_view name) const;
};

/// "an int", "the object collections.Counter", for messages.
std::string show(const PickleNode& node);

/// Protocols 0 to 5.
class Pickle {
 public:
  /// Whether a global ("module.name") may be in a pickle.
  using IsListed = std::function<bool(std::string_view global)>;

  /// Reads one pickle from the beginning of `bytes`. Takes memory of at most
  /// some hundred times its size.
  /// @param source names the pickle in errors.
  /// @throws Error naming the opcode's position when it is malformed, or asks
  ///   for a global that is not listed.
  Pickle(
      std::span<const std::byte> bytes,
      std::string_view source,
      const IsListed& is_listed);

  const PickleNode& root() const {
    return *root_;
  }
  /// All values, also those that the root does not refer to.
  const std::deque<PickleNode>& nodes() const {
    return nodes_;
  }
  /// Length of the pickle.
  size_t bytes() const {
    return bytes_;
  }

 private:
  friend class PickleReader;

  std::deque<PickleNode> nodes_;
  const PickleNode* root_ = nullptr;
  size_t bytes_ = 0;
};

} // namespace tessera::runtime
