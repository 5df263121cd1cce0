// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/checkpoint/state_agreement.h"

#include "tessera/engine/checkpoint/rng_state.h"
#include "tessera/runtime/comm/gather_texts.h"
#include "tessera/runtime/core/error.h"
#include "tessera/runtime/io/checksum.h"
#include "tessera/sharding/tensors/tensor_io.h"

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

namespace tessera::engine {

namespace {

using nlohmann::json;

/// Values of a state as texts, by path.
using StateTexts = std::map<std::string, std::string>;

/// Among the names of states; none of a Checkpointable is empty.
constexpr const char* kEngineValues = "";

std::string text_of_json(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

void add_values(const json& value, const std::string& path, StateTexts& texts) {
  if (!value.is_structured() || value.empty()) {
    texts[path] = text_of_json(value);
    return;
  }
  for (const auto& [key, inner] : value.items()) {
    add_values(inner, path.empty() ? key : path + "." + key, texts);
  }
}

/// "Float [2, 3] with the checksum 8a3f".
std::string text_of_tensor(const at::Tensor& tensor) {
  const at::Tensor values = tensor.detach().cpu().contiguous();
  return formatted(
      "{} {} with the checksum {}",
      values.scalar_type(),
      values.sizes(),
      runtime::checksum_of(sharding::raw_bytes(values)));
}

StateTexts texts_of(const CheckpointState& state) {
  StateTexts texts;
  add_values(state.values, "", texts);
  for (const auto& [name, tensor] : state.tensors) {
    texts["tensor " + name] = text_of_tensor(tensor);
  }
  return texts;
}

std::string hash_of_texts(const StateTexts& texts) {
  const std::string text = text_of_json(texts);
  return runtime::checksum_of(std::as_bytes(std::span(text)));
}

/// What a rank tells the others of a state.
struct StateAccount {
  bool is_per_rank = false;
  std::string hash; ///< empty: per rank

  bool operator==(const StateAccount&) const = default;
};

/// By name.
using StateAccounts = std::map<std::string, StateAccount>;

std::string text_of_accounts(const StateAccounts& accounts) {
  json text = json::array();
  for (const auto& [name, account] : accounts) {
    text.push_back({name, account.is_per_rank, account.hash});
  }
  return text_of_json(text);
}

StateAccounts read_accounts_of_states(const std::string& text) {
  StateAccounts accounts;
  for (const json& one : json::parse(text)) {
    accounts[one.at(0)] = {one.at(1), one.at(2)};
  }
  return accounts;
}

/// Fails if the kinds of the states do, which needs no values.
/// @return the first state whose values differ from rank 0's.
std::optional<std::string> find_other_state(
    const StateAccounts& first,
    const StateAccounts& other,
    size_t rank) {
  for (const auto& [name, account] : other) {
    const auto found = first.find(name);
    if (found == first.end()) {
      TESSERA_CHECK(
          account.is_per_rank,
          "save: the state '{}' is passed on rank {}, but not on rank 0, which writes it for all ranks; nothing was written. Pass it on rank 0 too, or return true from its is_per_rank() (Python: set its attribute is_per_rank) if each rank has its own.",
          name,
          rank);
      continue;
    }
    TESSERA_CHECK(
        found->second.is_per_rank == account.is_per_rank,
        "save: is_per_rank() of the state '{}' is {} on rank 0 and {} on rank {}; nothing was written. Return the same on every rank.",
        name,
        found->second.is_per_rank,
        account.is_per_rank,
        rank);
    if (found->second != account) {
      return name;
    }
  }
  return std::nullopt;
}

/// "samples is 8 on rank 0 and 4 on rank 1".
std::string difference_of_states(
    const std::string& first_text,
    const std::string& other_text,
    size_t rank) {
  const StateTexts first = json::parse(first_text);
  const StateTexts other = json::parse(other_text);
  StateTexts all = first;
  all.insert(other.begin(), other.end());
  const auto value_in = [](const StateTexts& texts, const std::string& path) {
    const auto found = texts.find(path);
    return found == texts.end() ? std::string("not there") : found->second;
  };
  for (const auto& [path, value] : all) {
    if (value_in(first, path) != value_in(other, path)) {
      return formatted(
          "{} is {} on rank 0 and {} on rank {}",
          path.empty() ? "its value" : path,
          value_in(first, path),
          value_in(other, path),
          rank);
    }
  }
  return formatted("it has changed on rank 0 or rank {} meanwhile", rank);
}

} // namespace

std::vector<NamedState> take_states(
    const std::vector<Checkpointable*>& states) {
  std::set<std::string> names{RngState().name()};
  std::vector<NamedState> taken;
  for (const Checkpointable* state : states) {
    std::string name = state->name();
    TESSERA_CHECK(
        names.insert(name).second,
        "save: two states are named '{}'; give each a unique name.",
        name);
    taken.push_back(
        {std::move(name), state->is_per_rank(), state->save_state()});
  }
  return taken;
}

void check_same_states(
    Communicator& job,
    const std::vector<NamedState>& states,
    const json& engine_values,
    const WaitCheck& check) {
  if (job.size() == 1) {
    return;
  }
  std::map<std::string, StateTexts> texts;
  texts[kEngineValues] = texts_of({engine_values, {}});
  StateAccounts local;
  for (const NamedState& state : states) {
    if (state.is_per_rank) {
      local[state.name] = {true, ""};
    } else {
      texts[state.name] = texts_of(state.state);
    }
  }
  for (const auto& [name, values] : texts) {
    local[name] = {false, hash_of_texts(values)};
  }
  const std::vector<std::string> all = runtime::gather_texts(
      job, text_of_accounts(local), "comparison of the states to save", check);
  const StateAccounts first = read_accounts_of_states(all.front());
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto name =
        find_other_state(first, read_accounts_of_states(all[rank]), rank);
    if (!name) {
      continue;
    }
    const std::vector<std::string> values = runtime::gather_texts(
        job, text_of_json(texts[*name]), "states that differ", check);
    const std::string difference =
        difference_of_states(values.front(), values[rank], rank);
    TESSERA_CHECK(
        *name != kEngineValues,
        "save: {}, but a checkpoint has one value, which all ranks load; nothing was written. Set the same on every rank, as by set_learning_rate().",
        difference);
    TESSERA_FAIL(
        "save: the state '{}' is not the same on all ranks: {}. A checkpoint has that of rank 0, which all ranks load; nothing was written. Make it the same on every rank; return true from its is_per_rank() (Python: set its attribute is_per_rank) if each rank has its own; or pass it on rank 0 alone if no other rank needs it.",
        *name,
        difference);
  }
}

} // namespace tessera::engine
