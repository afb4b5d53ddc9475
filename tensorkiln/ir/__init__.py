"""The two languages: tensor programs (`expr`, `buffer`, `stmt`) and graphs (`relax`)."""
