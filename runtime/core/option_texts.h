// SPDX-License-Identifier: Apache-2.0
#pragma once
// `option_texts()` gives the values of an options struct as texts, to compare.

#include "tessera/runtime/core/option_fields.h"

#include <map>
#include <string>

namespace tessera::runtime {

/// Values as in JSON by path, such as "optimizer.lr": "0.001"; fields without a
/// value are left out, and so are those of branches that are not chosen.
using OptionTexts = std::map<std::string, std::string>;

OptionTexts texts_of_list(const OptionList& list);

template <typename Options>
OptionTexts option_texts(Options options) {
  return texts_of_list(list_of(options));
}

} // namespace tessera::runtime
