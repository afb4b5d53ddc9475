"""The two IR levels: tensor programs (`expr`, `buffer`, `stmt`) and graphs (`relax`)."""
