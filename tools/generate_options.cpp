// SPDX-License-Identifier: Apache-2.0
#include "generate_options.h"

#include "tessera/runtime/core/error.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <typeinfo>

namespace tessera::tools {

namespace {

const std::map<std::string, zoo::EarlyStopping> kEarlyStopping{
    {"no", zoo::EarlyStopping::kNo},
    {"yes", zoo::EarlyStopping::kYes},
    {"never", zoo::EarlyStopping::kNever}};

/// Replaces a name where it is no part of a longer one.
/// @param only_after nothing, or what has to stand before it.
void replace_name(
    std::string& text,
    std::string_view name,
    std::string_view by,
    std::string_view only_after) {
  const auto continues = [&text](size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) ||
            text[at] == '_' || text[at] == '-');
  };
  for (size_t at = text.find(name); at != text.npos; at = text.find(name, at)) {
    const bool is_name =
        !continues(at + name.size()) && (at == 0 || !continues(at - 1)) &&
        std::string_view(text).substr(0, at).ends_with(only_after);
    if (is_name) {
      text.replace(at, name.size(), by);
    }
    at += is_name ? by.size() : name.size();
  }
}

} // namespace

template <typename Value>
CLI::Option* GivenOptions::add(
    const char* name,
    Value zoo::GenerateOptions::*field,
    const char* help) {
  CLI::Option* option = app_.add_option(name, given_.*field, help);
  take_if_given(option, field);
  return option;
}

void GivenOptions::add_flag(
    const char* name,
    bool zoo::GenerateOptions::*field,
    const char* help) {
  take_if_given(app_.add_flag(name, given_.*field, help), field);
}

template <typename Value>
void GivenOptions::take_if_given(
    const CLI::Option* option,
    Value zoo::GenerateOptions::*field) {
  takes_.emplace_back([this, option, field](zoo::GenerateOptions& options) {
    if (option->count() > 0) {
      options.*field = given_.*field;
    }
  });
}

GivenOptions::GivenOptions(CLI::App& app) : app_(app) {
  using Options = zoo::GenerateOptions;
  add("--max-new-tokens",
      &Options::max_new_tokens,
      "Maximum number of new tokens per sequence");
  add("--min-new-tokens",
      &Options::min_new_tokens,
      "Minimum number of new tokens before a sequence may end");
  add("--repetition-penalty",
      &Options::repetition_penalty,
      "Above 1: tokens already in the sequence become less likely");
  add("--no-repeat-ngram-size",
      &Options::no_repeat_ngram_size,
      "Do not repeat any sequence of this many tokens; 0: off");
  add_flag(
      "--sample,!--greedy",
      &Options::do_sample,
      "Sample tokens, or always take the most likely one");
  add("--temperature",
      &Options::temperature,
      "Divides the logits when sampling");
  add("--top-k",
      &Options::top_k,
      "Sample from this many most likely tokens; 0: from all");
  add("--top-p",
      &Options::top_p,
      "Sample from the most likely tokens with this total probability");
  add("--min-p",
      &Options::min_p,
      "Sample from tokens with at least this fraction of the highest probability");
  add("--seed", &Options::seed, "Seed of the random number generator");
  add("--num-beams",
      &Options::num_beams,
      "Above 1: beam search with this many beams; with --sample their "
      "continuations are drawn");
  add("--length-penalty",
      &Options::length_penalty,
      "Beam search: above 0 favors long sequences");
  add("--early-stopping",
      &Options::early_stopping,
      "Beam search: yes stops once as many sequences have ended as there "
      "are beams, no stops when a better one is unlikely, never when none "
      "is possible")
      ->transform(CLI::CheckedTransformer(kEarlyStopping)
                      .description("no, yes or never"));
  add("--num-return-sequences",
      &Options::num_return_sequences,
      "Results per input sequence: the best beams, or samples");
  add("--stop",
      &Options::stop_strings,
      "A text ends before this text; may be given several times")
      ->allow_extra_args(false);
}

std::string GivenOptions::with_option_names(const std::string& text) const {
  std::string named = text;
  for (const CLI::Option* option : app_.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      std::string field = name;
      std::replace(field.begin(), field.end(), '-', '_');
      if (field == name && name != "temperature") {
        continue; // a word of other meanings, too
      }
      replace_name(
          named, field, "--" + name, option->count() > 0 ? "" : "set ");
    }
  }
  replace_name(named, "do_sample", "--sample", "without ");
  return named;
}

void GivenOptions::run(const std::function<void()>& part) const {
  try {
    part();
  } catch (const Error& error) {
    const std::string named = with_option_names(error.what());
    if (typeid(error) != typeid(Error) || named == error.what()) {
      throw;
    }
    throw Error(named);
  }
}

zoo::GenerateOptions GivenOptions::over(
    const std::string& folder,
    const zoo::GenerateOptions& defaults) const {
  zoo::GenerateOptions options = zoo::generate_options(folder, defaults);
  for (const auto& take : takes_) {
    take(options);
  }
  // They replace what the folder says of the whole length.
  if (is_given("--max-new-tokens")) {
    options.max_length.reset();
  }
  if (is_given("--min-new-tokens")) {
    options.min_length = 0;
  }
  run([&options] { options.check(); });
  for (const char* const name :
       {"--temperature", "--top-k", "--top-p", "--min-p", "--seed"}) {
    TESSERA_CHECK(
        options.do_sample || !is_given(name),
        "{} only affects sampling, which is off; add --sample, or remove it",
        name);
  }
  for (const char* const name : {"--length-penalty", "--early-stopping"}) {
    TESSERA_CHECK(
        options.num_beams > 1 || !is_given(name),
        "{} only affects beam search, which is off; add --num-beams, or remove it",
        name);
  }
  return options;
}

} // namespace tessera::tools
