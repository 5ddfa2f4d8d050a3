/// All of Sherd's library. Each header describes one part; trainer.h is where to begin reading.
#pragma once

#include "sherd/checkpoint.h"
#include "sherd/error.h"
#include "sherd/generation.h"
#include "sherd/model_folder.h"
#include "sherd/plan.h"
#include "sherd/recipe.h"
#include "sherd/tokenizer.h"
#include "sherd/trainer.h"
#include "sherd/version.h"
