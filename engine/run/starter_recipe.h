/// A first recipe for the user's own texts: small, commented, ready to train.
#pragma once

#include <string>

#include "engine/recipe/recipe.h"

namespace sherd::engine {

struct StarterRequest {
  std::string data_path;                   ///< a file, a folder or a glob
  DataFormat format = DataFormat::kBytes;  ///< bytes or chars; bin isn't text
};

/// YAML. The vocabulary of `chars` is counted in the text; sequences are as long as the longest
/// file allows, up to 256 tokens.
/// Errors   DataError: no text, too little text, or chars that aren't UTF-8.
std::string starter_recipe(const StarterRequest& request);

/// The quickstart's recipe, as packages carry it: `folder` has recipe.yaml and text.txt, which
/// cmake/quickstart.cmake makes. The result names the text by its whole path.
/// Errors   DataError: one of the two files is missing, or the recipe doesn't name the text.
std::string packaged_quickstart(const std::string& folder);

}  // namespace sherd::engine
