# What each library is for, and why this one: docs/dependencies.md. `./dev deps` installs them.
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
set(BLA_VENDOR OpenBLAS)
find_package(BLAS REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
