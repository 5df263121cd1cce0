// SPDX-License-Identifier: Apache-2.0
#pragma once
// `ExampleTaskOptions` are the options of the task examples.

#include "tessera/zoo/inputs/example_options.h"

namespace tessera::tasks {

/// Parts of the section `data`.
struct ExampleTaskOptions {
  /// Without ExampleOptions::sequence_multiple, which depends on the layout of
  /// ranks.
  zoo::ExampleOptions examples;
  /// Scoring also reports accuracy; false: the loss only, without materializing
  /// the logits of all tokens.
  bool accuracy = true;
};

} // namespace tessera::tasks
